# The strand of the lessons: one setting for every attention. It is gentle: one sees them learn.
out_dir = 'out/strand'
task = 'bio_rotation'  # a strand of 10 letters, repeated by position alone
n_layer = 1  # enough if the frequencies are right; lesson 3 tries two
max_iters = 300
eval_interval = 20  # often enough to see the frequencies move
optimizer = 'adamw'
learning_rate = 1e-3
