out_dir = 'out/bio_rotation_rope'
task = 'bio_rotation'  # a strand of 10 letters, repeated by position alone
attention = 'rope'
n_layer = 1  # one is enough, if the frequencies are right
max_iters = 1000
