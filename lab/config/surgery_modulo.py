out_dir = 'out/surgery_modulo'
# the weights of config/modulo_rope.py; Omega starts at its theta
init_from = 'out/modulo_rope/best.pt'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'spectral'  # learned now; with --learning_rate=0 nothing else is
n_layer = 1  # as the checkpoint has
max_iters = 2000
eval_interval = 50  # often enough to see the frequencies move
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 4e-3  # AdamW's best in the first trial
