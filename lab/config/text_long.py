# A trained model goes on at four times its length. Options for the other arms:
#   --init_from=out/text_tapa/best.pt --attention=tapa, and its three options
#   --rope=yarn:factor=8       or pi, or ntk; trained at 4 times the length, meant for 8
#   --rope_base=4e4            a larger base
out_dir = 'out/text_long'
init_from = 'out/text_rope/best.pt'
task = 'text'
attention = 'rope'
n_layer = 4
n_head = 4
n_embd = 128
rope_base = 100.0  # as the checkpoint has, and bifocal's; 10000 for the other arms
block_size = 1024
batch_size = 2  # as many tokens in a batch as before
max_iters = 100  # a tenth of the pretraining; the TAPA paper took a four-hundredth
warmup_iters = 10
eval_interval = 20
eval_sequences = 16
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 4e-4  # the best of three rates: study/tuning.md
spectral_lr = 2e-3
