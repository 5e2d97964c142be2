out_dir = 'out/modulo_spectral'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'spectral'
n_layer = 1  # one is enough, if the frequencies are right
max_iters = 1000
