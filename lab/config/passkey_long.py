# A trained model goes on at four times its length. Other arms: as in text_long.py.
out_dir = 'out/passkey_long'
init_from = 'out/passkey_rope/best.pt'
task = 'passkey'
attention = 'rope'
n_layer = 2
rope_base = 1e5  # as the checkpoint has; 10000 for Spectral and Bifocal
block_size = 256
batch_size = 16  # as many tokens in a batch as before
max_iters = 200  # a tenth of the pretraining
warmup_iters = 20
eval_interval = 25
eval_sequences = 128
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 4e-4  # the middle one of the rates that were tried: study/tuning.md
spectral_lr = 2e-3
