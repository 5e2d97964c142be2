out_dir = 'out/dyck3_spectral'
task = 'dyck'  # three kinds of brackets, nested up to 8 deep
attention = 'spectral'
n_layer = 2  # the first can count the depth, the second find the opener
max_iters = 1000  # the loss falls suddenly, once the brackets are understood
eval_interval = 100
optimizer = 'muon'  # better than adamw on three tuning seeds: study/tuning.md
# the tuning seeds prefer rope_base 100 and 2e-2, but other seeds fail with them
muon_lr = 1e-2
learning_rate = 4e-3  # of the other parameters, by AdamW
