out_dir = 'out/bio_rotation_bifocal'
task = 'bio_rotation'  # a strand of 10 bases, read off turn after turn
attention = 'bifocal'
n_layer = 1  # one look back at the strand is all it takes; a second layer could count another way
max_iters = 1000
eval_interval = 20
learning_rate = 2e-3
