out_dir = 'out/surgery_bio_rotation'
init_from = 'out/bio_rotation_rope/best.pt'  # of config/bio_rotation_rope.py: its weights, and Omega at its theta
task = 'bio_rotation'  # a strand of 10 bases, read off turn after turn by position alone
attention = 'spectral'  # now they may move; with --learning_rate=0 nothing else may
n_layer = 1  # as the checkpoint has
init_std = 0.02  # as config/bio_rotation_rope.py has it; nothing is drawn here
max_iters = 1000
eval_interval = 20  # often enough to see the frequencies move
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 1e-3  # AdamW's best in the first trial
