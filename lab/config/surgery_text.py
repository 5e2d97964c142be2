out_dir = 'out/surgery_text'
# the weights of config/text_rope.py; Omega starts at its theta
init_from = 'out/text_rope/best.pt'
task = 'text'
attention = 'spectral'  # learned; with --learning_rate=0 nothing else is; control: --attention=rope
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
learning_rate = 4e-4  # a fifth of the pretraining's with AdamW
positional_lr = 1e-3
