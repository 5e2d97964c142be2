# The strand of the lessons: one setting for every attention. config/bio_rotation_*.py has the best of each.
out_dir = 'out/strand'
task = 'bio_rotation'  # a strand of 10 bases, read off turn after turn by position alone
n_layer = 1  # one look back does it, if the frequencies are right
init_std = 0.02  # as small as GPT-2
max_iters = 300
eval_interval = 20  # often enough to see the frequencies move
optimizer = 'adamw'
learning_rate = 1e-3
