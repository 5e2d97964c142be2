out_dir = 'out/bio_rotation_rope'
task = 'bio_rotation'  # a strand of 10 bases, read off turn after turn
attention = 'rope'
n_layer = 1  # one look back at the strand is all it takes; a second layer could count another way
max_iters = 1000
eval_interval = 20
learning_rate = 2e-3
