out_dir = 'out/text_spectral'
task = 'text'  # the Python standard library, byte by byte; or 'text:path=FILE'
attention = 'spectral'
n_layer = 4
n_head = 4
n_embd = 128
block_size = 256
batch_size = 8
max_iters = 1000  # 2 million bytes: five minutes on a laptop; more would still help
eval_interval = 100
eval_sequences = 64
# muon_lr = 1e-2 and rope_base = 10000, the defaults, are its best of a search: study/tapa.md
