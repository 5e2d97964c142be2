out_dir = 'out/bio_rotation_spectral'
task = 'bio_rotation'  # a strand of 10 letters, repeated by position alone
attention = 'spectral'
n_layer = 1  # one is enough, if the frequencies are right
max_iters = 1000
