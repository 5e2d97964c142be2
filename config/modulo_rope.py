out_dir = 'out/modulo_rope'
task = 'modulo'  # digits plus a clock, mod 7
attention = 'rope'
n_layer = 1  # a second layer could count another way, without a clock
max_iters = 3000
eval_interval = 100
learning_rate = 2e-3
