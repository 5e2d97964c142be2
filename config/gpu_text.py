# An hour on one GPU of 24 GiB, by calculation; not run yet, and its rates are not tuned.
#
#   30 M parameters     6 blocks of 1.8 M, and an output matrix of 19.3 M (the table is extra)
#   0.208 GFLOP a token 6 * 29.9 M, and 12 * 6 layers * 384 * 1024 for the scores
#   492 M tokens        7500 updates of 8 * 8 * 1024
#   102e15 FLOP         their product
#   3600 seconds        at 40 % of the 71 TFLOP/s of an RTX 3090 in bfloat16; 4090: 165 TFLOP/s
#
# Other attentions: --attention=tapa_fused --muon_lr=5e-3 --out_dir=out/gpu_tapa, and the last three
# options of text_tapa.py
out_dir = 'out/gpu_text'
task = 'text:encoding=gpt2'  # the standard library, over and over; better a GB with ',path=FILE'
attention = 'spectral'
dtype = 'bfloat16'
n_layer = 6
n_head = 6
n_embd = 384
block_size = 1024
batch_size = 8  # the logits of more would not fit: 50257 for each token
gradient_accumulation_steps = 8
max_iters = 7500
warmup_iters = 200
eval_interval = 250
eval_sequences = 64
optimizer = 'muon'
muon_lr = 2e-2
learning_rate = 2e-3  # of the other parameters, by AdamW
