out_dir = 'out/modulo_tapa'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'tapa'
n_layer = 1  # one is enough; two could count another way
max_iters = 2000
eval_interval = 50  # often enough to see the frequencies move
optimizer = 'adamw'  # TAPA learns this task with neither optimizer: study/tuning.md
learning_rate = 4e-3
