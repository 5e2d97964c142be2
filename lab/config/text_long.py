# A trained model goes on at four times its length. Options for the other arms:
#   --init_from=out/text_tapa/best.pt --attention=tapa_fused, and the options of text_tapa.py
#   --frequencies=yarn:factor=8 --attention=rope_yarn    or pi, or ntk with rope
#   --rope_base=4e4                                      a larger base
out_dir = 'out/text_long'
init_from = 'out/text_rope/best.pt'
task = 'text'
attention = 'rope'  # layers, heads, width and base are those of the checkpoint
block_size = 1024
batch_size = 2  # as many tokens in a batch as before
max_iters = 100  # a tenth of the pretraining; the TAPA paper took a four-hundredth
warmup_iters = 10
eval_interval = 20
eval_sequences = 16
optimizer = 'adamw'
learning_rate = 4e-4
positional_lr = 2e-3
