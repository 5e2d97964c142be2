out_dir = 'out/modulo_tapa'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'tapa'
n_layer = 1  # one is enough, if the frequencies are right
max_iters = 1000
tapa_scale = 1.0  # as in the authors' release: 2 pi learns less
tapa_alpha = 0.5
