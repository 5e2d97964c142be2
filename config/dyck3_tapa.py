out_dir = 'out/dyck3_tapa'
task = 'dyck'  # three kinds of brackets, nested up to 8 deep
attention = 'tapa'
n_layer = 2  # the first can count the depth, the second find the opener
max_iters = 500
tapa_scale = 1.0  # as in the authors' release: 2 pi learns less
tapa_alpha = 0.5
