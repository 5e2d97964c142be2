out_dir = 'out/text_tapa'
task = 'text'  # the Python standard library's own sources, byte by byte; 'text:path=FILE' for another text
attention = 'tapa'
n_layer = 4
n_head = 4
n_embd = 128
block_size = 256
batch_size = 8
max_iters = 1000  # 2 million bytes: five minutes on a laptop, and far from the end
eval_interval = 100
eval_sequences = 64
optimizer = 'muon'  # on a tuning seed better than AdamW, at the best of its rates: lab/tuning.md
muon_lr = 5e-3
learning_rate = 4e-3  # of the rest, with AdamW
init_std = 0.02  # a small phase at the start: nearly plain attention
