out_dir = 'out/bio_rotation_spectral'
task = 'bio_rotation'  # a strand of 10 bases, read off turn after turn by position alone
attention = 'spectral'
n_layer = 1  # one look back does it, if the frequencies are right; a second layer could count another way
init_std = 0.02  # as small as GPT-2; from the larger default only spectral learned the task (one seed): lab/bifocal.md
max_iters = 1000
eval_interval = 20  # often enough to see the frequencies move
learning_rate = 1e-3  # the best of 5e-4, 1e-3, 2e-3, 4e-3 on a seed that is not reported: lab/README.md
