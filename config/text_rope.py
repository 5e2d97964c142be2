out_dir = 'out/text_rope'
task = 'text'  # the Python standard library, byte by byte; or 'text:path=FILE'
attention = 'rope'
n_layer = 4
n_head = 4
n_embd = 128
block_size = 256
batch_size = 8
max_iters = 1000  # 2 million bytes: five minutes on a laptop; more would still help
eval_interval = 100
eval_sequences = 64
muon_lr = 2e-2  # this was searched: study/tapa.md
rope_base = 100.0  # the best of 100, 1000 and 10000
