out_dir = 'out/text_rope'
task = 'text'  # the Python standard library's own sources, byte by byte; 'text:path=FILE' for another text
attention = 'rope'
n_layer = 4
n_head = 4
n_embd = 128
block_size = 256
batch_size = 8
max_iters = 1000  # 2 million bytes: five minutes on a laptop, and far from the end
eval_interval = 100
eval_sequences = 64
optimizer = 'muon'  # on a tuning seed better than AdamW, at the best of its rates: lab/tuning.md
muon_lr = 2e-2
learning_rate = 4e-3  # of the rest, with AdamW
rope_base = 100.0  # with AdamW the best of 100, 1000 and 10000 at L; beyond L 40 is better, where all pairs turn
