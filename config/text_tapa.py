out_dir = 'out/text_tapa'
task = 'text'  # the Python standard library, byte by byte; or 'text:path=FILE'
attention = 'tapa'
n_layer = 4
n_head = 4
n_embd = 128
block_size = 256
batch_size = 8
max_iters = 1000  # 2 million bytes: five minutes on a laptop; more would still help
eval_interval = 100
eval_sequences = 64
muon_lr = 5e-3  # this was searched: study/tapa.md
tapa_scale = 1.0  # as in the authors' release; these three were searched, too
tapa_alpha = 0.5
tapa_theta = 0.0625  # 2 of 32 dimensions give the amplitude, the others the phase
