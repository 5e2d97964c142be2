out_dir = 'out/surgery_bio_rotation'
# the weights of config/bio_rotation_rope.py; Omega starts at its theta
init_from = 'out/bio_rotation_rope/best.pt'
task = 'bio_rotation'  # a strand of 10 bases, copied again and again by position alone
attention = 'spectral'  # learned now; with --learning_rate=0 nothing else is
n_layer = 1  # as the checkpoint has
max_iters = 1000
eval_interval = 20  # often enough to see the frequencies move
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 1e-3  # AdamW's best in the first trial
