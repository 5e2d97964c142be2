out_dir = 'out/dyck3_bifocal'
task = 'dyck'  # three kinds of brackets, nested up to 8 deep
attention = 'bifocal'
n_layer = 2  # the first can count the depth, the second find the opener
max_iters = 4000  # the loss falls suddenly, once the brackets are understood; when differs by seed
eval_interval = 100
learning_rate = 4e-3  # the better of 2e-3 and 4e-3 on a seed that is not reported: lab/README.md
