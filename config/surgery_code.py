# A Llama of 135 million parameters goes on with code, its frequencies made learnable. Any checkpoint of that kind that
# fits the memory will do, if these two name it:
init_from = 'hf:HuggingFaceTB/SmolLM2-135M'  # downloaded once; it gives the model's shape and its RoPE
task = 'text:encoding=hf:HuggingFaceTB/SmolLM2-135M'  # the standard library's sources in the tokens of the checkpoint
out_dir = 'out/surgery_code'
attention = 'spectral'  # --attention=rope --learning_rate=1e-4 is the control
optimizer = 'adamw'  # Muon was not measured here
learning_rate = 0.0  # Omega, A and Phi alone, 8640 numbers; 1e-4 to train every weight
block_size = 512
batch_size = 4
max_iters = 200
warmup_iters = 20
eval_interval = 20
eval_sequences = 32
spectral_lr = 1e-3
