# A Llama of 135 million parameters goes on with code, and its frequencies are learned. It is
# downloaded once. Any other Llama that fits the memory will do, if these two name it:
init_from = 'hf:HuggingFaceTB/SmolLM2-135M'
task = 'text:encoding=hf:HuggingFaceTB/SmolLM2-135M'  # Python's standard library in its tokens
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
