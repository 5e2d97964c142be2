# The brackets of the lessons: two types, three deep, in short strings: half a minute is enough.
out_dir = 'out/brackets'
task = 'dyck:k=2,max_depth=3'
block_size = 32
max_iters = 300
