out_dir = 'out/modulo_rope'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'rope'
n_layer = 1  # one look back does it, if the frequencies are right; a second layer could count another way
max_iters = 2000
eval_interval = 50  # often enough to see the frequencies move
optimizer = 'adamw'  # the better of both, at the best of its rates, on three tuning seeds: lab/tuning.md
learning_rate = 8e-3
