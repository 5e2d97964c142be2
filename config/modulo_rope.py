out_dir = 'out/modulo_rope'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'rope'
n_layer = 1  # one is enough, if the frequencies are right; two could count another way
max_iters = 2000
eval_interval = 50  # often enough to see the frequencies move
# base 10000: the tuning seeds prefer 100, which solves fewer of twenty others
optimizer = 'adamw'  # better than muon on three tuning seeds: study/tuning.md
learning_rate = 8e-3
