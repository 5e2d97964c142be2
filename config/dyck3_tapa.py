out_dir = 'out/dyck3_tapa'
task = 'dyck'  # three kinds of brackets, nested up to 8 deep
attention = 'tapa'
n_layer = 2  # the first can count the depth, the second find the opener
max_iters = 4000  # the loss falls suddenly, once the brackets are understood; when differs by seed
eval_interval = 100
learning_rate = 2e-3  # the best of 1e-3, 2e-3, 4e-3 on a seed that is not reported: lab/README.md
