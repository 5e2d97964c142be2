out_dir = 'out/modulo_bifocal'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'bifocal'
n_layer = 1  # one look back does it, if the frequencies are right; a second layer could count another way
max_iters = 2000
eval_interval = 50  # often enough to see the frequencies move
learning_rate = 2e-3  # the better of 2e-3 and 4e-3 on a seed that is not reported: lab/README.md
