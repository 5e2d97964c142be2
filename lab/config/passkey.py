# Other attentions: --attention=spectral --out_dir=out/passkey_spectral, and so on
out_dir = 'out/passkey_rope'
task = 'passkey'  # which five digits stood among random fillers?
attention = 'rope'
n_layer = 2  # one sees what stands behind a K, one copies it
max_iters = 2000
