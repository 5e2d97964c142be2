out_dir = 'out/bio_rotation_tapa'
task = 'bio_rotation'  # a strand of 10 letters, repeated by position alone
attention = 'tapa'
n_layer = 1  # one is enough, if the frequencies are right
max_iters = 1000
tapa_scale = 1.0  # as in the authors' release: 2 pi learns less
tapa_alpha = 0.5
