out_dir = 'out/surgery_text'
init_from = 'out/text_rope/best.pt'  # of config/text_rope.py: its weights, and Omega at its theta
task = 'text'
attention = 'spectral'  # now they may move; with --learning_rate=0 nothing else may; --attention=rope is the control
n_layer = 4  # as the checkpoint has
n_head = 4
n_embd = 128
rope_base = 100.0  # as the checkpoint has
block_size = 256
batch_size = 8
max_iters = 200  # a fifth of the pretraining
warmup_iters = 20
eval_interval = 20
eval_sequences = 64
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 4e-4  # a fifth of what the pretraining had in the lab's runs, with AdamW
spectral_lr = 1e-3
