out_dir = 'out/dyck3_rope'
task = 'dyck'  # three kinds of brackets, nested up to 8 deep
attention = 'rope'
n_layer = 2  # the first can count the depth, the second find the opener
max_iters = 500
