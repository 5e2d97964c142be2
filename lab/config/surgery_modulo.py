# The weights of config/modulo_rope.py; Omega starts at its theta. For the frequencies alone:
# --learning_rate=0
out_dir = 'out/surgery_modulo'
init_from = 'out/modulo_rope/best.pt'
task = 'modulo'  # digits plus a hidden clock, mod 7
attention = 'spectral'
max_iters = 2000
optimizer = 'adamw'
