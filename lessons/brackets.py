# The brackets of the lessons: two kinds, three deep, and short strings, so that half a minute is enough.
out_dir = 'out/brackets'
task = 'dyck:k=2,max_depth=3'
block_size = 32
max_iters = 300
optimizer = 'muon'
muon_lr = 0.02
learning_rate = 4e-3  # of the rest, with AdamW
