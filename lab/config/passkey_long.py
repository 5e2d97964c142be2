# A trained model goes on at four times its length, for a tenth of the updates.
out_dir = 'out/passkey_long'
init_from = 'out/passkey_rope/best.pt'
task = 'passkey'
attention = 'rope'
block_size = 256
batch_size = 16  # as many tokens in a batch as before
max_iters = 200
warmup_iters = 20
eval_interval = 25
eval_sequences = 128
optimizer = 'adamw'
learning_rate = 4e-4
positional_lr = 2e-3
