"""
Train a GPT on a formal language, or on text. The options are the global variables below.

    python train.py config/dyck3_spectral.py                             # a run, on any device
    python train.py config/dyck3_spectral.py --seed=1 --out_dir=out/one  # with other options
    python train.py config/dyck3_spectral.py --init_from=resume          # go on where it stopped
    torchrun --standalone --nproc_per_node=2 train.py --gradient_accumulation_steps=2
"""

import contextlib
import dataclasses
import gc
import importlib.util
import math
import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from checkpoint import RunFolder, build_model, current_state, names_a_file, restore
from configurator import command, configure, one_line_errors, this_process, to_device
from eval import evaluate, learned_state
from model import GPT, GPTConfig, UserError
from optim import configure_optimizers
from tasks import make_rng, make_task, without_path

lab = None
if importlib.util.find_spec('lab'):  # it adds attentions, frequencies, tasks, and start_from
    import lab

# the run
out_dir = 'out/run'  # its folder: config.json, log.jsonl, ckpt.pt (latest), best.pt
init_from = 'scratch'  # or 'resume'; with lab/, the path of another run's checkpoint
overwrite = False  # True: a new run may replace the one in out_dir
seed = 0  # of the weights and the training data; the validation set is always the same
device = 'auto'  # 'auto' (cuda, else mps, else cpu), or one such as 'cuda:1'
dtype = 'auto'  # of matrix products: 'float32', 'bfloat16', or the faster one on a GPU
compile = 'auto'  # torch.compile: 'yes', 'no', or 'auto': on cuda, from 2000 updates on

# the data: fresh batches, no epochs
task = 'dyck'  # a task in tasks.py; parameters follow a ':', such as 'modulo:modulus=11'
block_size = 64  # T, tokens in a training sequence
batch_size = 64  # B, sequences in a micro-batch
gradient_accumulation_steps = 1  # micro-batches in an update, divided among the processes

# the model: fields of GPTConfig
n_layer = 2  # blocks
n_head = 2  # query heads
n_kv_head = 0  # key/value heads, shared by n_head / n_kv_head query heads; 0: n_head
n_embd = 64  # C, width of the residual stream
init_std = 0.02  # of the initial weights, as in GPT-2
attention = 'rope'  # 'rope', 'spectral', 'bifocal', 'tapa', 'nope'; 'rope,nope': layer by layer
log_scale_length = 0  # L, tokens: scores times ln(m+1) / ln(L), for long strings; 0: off
# for rope, spectral and bifocal
frequencies = 'geometric'  # theta_i = rope_base^(-2i/hs); lab/ has 'linear', 'yarn:factor=4', ...
rope_base = 10000.0  # of these frequencies: rope keeps them, spectral's Omega starts there
# for spectral and bifocal
learn = 'frequency,amplitude,phase'  # which of Omega, A and Phi are learned, or 'none'
phase_std = 1e-3  # Phi starts at N(0, phase_std^2), learned or not
# for tapa
tapa_alpha = 0.1  # exponent of the distance in the phase
tapa_theta = 0.5  # share of a head's dimensions in the amplitude; the others set the phase
tapa_scale = 2 * math.pi  # factor of the phase; 1 in its authors' code

# the optimizer
max_iters = 1000  # updates; the schedule ends with them
stop_loss = 0.0  # nats: ends when the validation loss is at most this; for searches
warmup_iters = 50  # updates of linear warm-up
lr_end = 0.0  # last learning rate, as a share of the peak
optimizer = 'muon'  # Muon for the blocks' matrices, AdamW for the rest; 'adamw': AdamW for all
muon_lr = 0.01  # Muon's peak learning rate
learning_rate = 4e-3  # AdamW's peak learning rate
positional_lr = 1e-2  # peak rate of Omega, A and Phi, or of what your attention learns
weight_decay = 0.1  # of matrices that AdamW updates; with Muon, only of lm_head
beta1 = 0.9  # AdamW: decay of the mean of the gradients
beta2 = 0.99  # AdamW: decay of the mean of their squares
grad_clip = 1.0  # greatest norm of the gradient; 0: no limit

# the log
log_interval = 10  # updates between log lines
eval_interval = 50  # updates between validations; each one saves ckpt.pt
eval_sequences = 512  # validation sequences, the same ones every time


def schedule(it, max_iters, warmup_iters, end):
    """The share of the peak learning rate at update `it`: linear warm-up, cosine to `end`."""
    if it < warmup_iters:
        return (it + 1) / (warmup_iters + 1)
    progress = min(1.0, (it - warmup_iters) / max(1, max_iters - warmup_iters))
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))


def check_options(cfg, world):
    """Raise UserError for options that cannot be. GPTConfig and make_task check theirs."""
    def require(name, ok, allowed):
        if not ok:
            raise UserError(f'{name}={getattr(cfg, name)!r}: must be {allowed}')

    choices = dict(dtype='auto, float32, bfloat16', compile='auto, yes, no',
                   optimizer='muon, adamw')
    for name, allowed in choices.items():
        require(name, getattr(cfg, name) in allowed.split(', '), f'one of {allowed}')
    for name in ('batch_size', 'gradient_accumulation_steps', 'max_iters', 'log_interval',
                 'eval_interval', 'eval_sequences'):
        require(name, 1 <= getattr(cfg, name) < 2**31, 'at least 1, and below 2**31')
    divides = cfg.gradient_accumulation_steps % world == 0
    require('gradient_accumulation_steps', divides, f'a multiple of {world}, the processes')
    fields = {field.name for field in dataclasses.fields(GPTConfig)}
    for name in vars(cfg):
        # in a dataclass "x = 0.0" makes no field, only "x: float = 0.0" does
        has_no_type = hasattr(GPTConfig, name) and name not in fields
        require(name, not has_no_type,
                f'written with a type in GPTConfig, such as {name}: float = 0.0')


def start_model(cfg, task, folder, given=()):
    """A new model; that of the run in this folder; or, by the lab, another run's."""
    if cfg.init_from == 'resume':
        folder.load(cfg, task)
        return build_model(folder.checkpoint, f'{cfg.out_dir}/ckpt.pt')
    # the weights have a seed of their own
    torch.manual_seed(int(make_rng(cfg.seed, 'init').integers(2**63)))
    fields = [field.name for field in dataclasses.fields(GPTConfig)]
    args = {name: getattr(cfg, name) for name in fields if hasattr(cfg, name)}
    args['vocab_size'] = len(task.symbols)
    if cfg.init_from == 'scratch':
        return GPT(GPTConfig(**args))
    if lab is None:
        raise UserError(f'init_from={cfg.init_from!r}: must be scratch or resume without lab/')
    return lab.start_from(cfg.init_from, task, args)


def batches(cfg, task, process, start):
    """The micro-batches of this process, x and y (B, T), from iteration `start` on."""
    for it in range(start, cfg.max_iters + 1):
        for slot in range(process.rank, cfg.gradient_accumulation_steps, process.world):
            # seeded by nothing else: a resumed run, or one of other processes, has the same data
            rng = make_rng(cfg.seed, 'train', it, slot)
            batch = task.sample(rng, cfg.batch_size, cfg.block_size)
            yield to_device(batch, process.device)


def check_finite(loss, grad_norm, it):
    """Raise UserError for a loss or a gradient that is no number."""
    if not math.isfinite(loss) or not math.isfinite(grad_norm):
        advice = 'try a lower learning rate'
        if it == 0:
            advice = 'check the attention scores, and that the task has targets'
        raise UserError(f'the training loss is {loss:.4g} and its gradient {grad_norm:.4g} '
                        f'at update {it}: {advice}')


def train(cfg, process, task, model, validation, folder):
    """Train the model on the task, on one device, or as one of several processes."""
    optimizers = configure_optimizers(model, cfg)
    start, best_val_loss, seconds = 0, math.inf, 0.0
    if folder.checkpoint:  # start_model has loaded it, to resume
        start, best_val_loss, seconds = restore(folder.checkpoint, optimizers)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    # three handles to one model: `model` is saved, `compiled` evaluated, `ddp_model` trained
    compiled = model
    long_job = process.device_type == 'cuda' and cfg.max_iters >= 2000  # compiling takes a minute
    if cfg.compile == 'yes' or (cfg.compile == 'auto' and long_job):
        compiled = torch.compile(model)
    ddp_model = compiled
    if process.world > 1:
        ddp_model = DistributedDataParallel(compiled)

    print(f'{cfg.attention} on {process.device}, {process.dtype}, '
          f'compiled: {compiled is not model}, processes: {process.world}')
    for group in groups:
        n = sum(p.numel() for p in group['params'])
        print(f'  {n:>10,} {group["role"]:17s} learning rate {group["peak_lr"]:g}')
    micro_steps = cfg.gradient_accumulation_steps // process.world
    tokens = cfg.gradient_accumulation_steps * cfg.batch_size * cfg.block_size  # in an update
    data = batches(cfg, task, process, start)
    x, y = next(data)
    clock, clock_it = time.perf_counter(), start

    # `it` counts the updates that are done. Each pass has three steps: 1. loss and gradient of
    # these weights; 2. log, validate, save; 3. update. The last pass has no step 3.
    for it in range(start, cfg.max_iters + 1):
        lr_factor = schedule(it, cfg.max_iters, cfg.warmup_iters, cfg.lr_end)
        for group in groups:
            group['lr'] = group['peak_lr'] * lr_factor

        # 1. the gradient of the global batch, a micro-batch at a time
        loss = 0.0
        for micro_step in range(micro_steps):
            if process.world > 1:  # the last backward pass takes the mean over the processes
                ddp_model.require_backward_grad_sync = (micro_step == micro_steps - 1)
            with process.autocast():
                _, micro_loss = ddp_model(x, y)
            x, y = next(data, (None, None))  # the CPU draws the next batch while the GPU works
            loss = loss + micro_loss.detach() / micro_steps
            (micro_loss / micro_steps).backward()
        # before clipping: it is logged, and step 3 clips by it
        grad_norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])

        # 2. log the training loss; sometimes measure the validation loss, and save
        last = it == cfg.max_iters
        evaluating = last or it % cfg.eval_interval == 0
        logging = evaluating or it % cfg.log_interval == 0
        if logging:
            if process.world > 1:  # the mean over the processes
                dist.all_reduce(loss.div_(process.world))
            check_finite(loss, grad_norm, it)
        if logging and process.rank == 0:
            now = time.perf_counter()
            seconds += now - clock
            speed = tokens * (it - clock_it) / (now - clock)
            line = dict(iter=it, train_loss=loss.item(), lr=cfg.learning_rate * lr_factor,
                        grad_norm=grad_norm.item(), tokens_per_second=speed,
                        seconds=seconds)
            text = f'{it:>6d}/{cfg.max_iters}  train loss {loss:.4f}'
            if speed > 0:
                minutes_left = (cfg.max_iters - it) * tokens / speed / 60
                text += f'  {speed:,.0f} tokens/s  {minutes_left:.1f} min left'
            print(text, flush=True)
            state, best = None, False
            if evaluating:
                with process.autocast():
                    val_loss, val_acc, _ = evaluate(compiled, *validation, cfg.batch_size)
                best = val_loss <= best_val_loss
                best_val_loss = min(best_val_loss, val_loss)
                print(f'        val loss {val_loss:.5f}, accuracy {100 * val_acc:.2f} %')
                line = learned_state(model) | line | dict(val_loss=val_loss, val_acc=val_acc)
                state = current_state(it, best_val_loss, seconds, model, optimizers)
            folder.write(line, state, best)
            clock, clock_it = time.perf_counter(), it
            if evaluating and val_loss <= cfg.stop_loss:
                break
        if last:
            break

        # 3. the update
        if cfg.grad_clip:
            clip_grads_with_norm_(model.parameters(), cfg.grad_clip, grad_norm)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    words = ['python', 'eval.py', folder.path]
    if names_a_file(cfg.task):  # eval.py opens no file that only a checkpoint names
        words.append(f'--task={cfg.task}')
    print(f'done: best val loss {best_val_loss:.5f}; now: {command(*words)}')


def main(cfg, given=()):
    """Train as the options `cfg` say, alone or as one of the processes of torchrun."""
    process = this_process(cfg.device, cfg.dtype)
    if process.rank > 0:
        sys.stdout = open(os.devnull, 'w')  # the first process prints, validates and saves
    check_options(cfg, process.world)
    if process.device_type == 'cuda':
        torch.set_float32_matmul_precision('high')  # TF32
    task = make_task(cfg.task)
    folder = RunFolder(cfg.out_dir, cfg.init_from == 'resume', cfg.overwrite)
    model = start_model(cfg, task, folder, given)
    vars(cfg).update({k: v for k, v in dataclasses.asdict(model.config).items() if hasattr(cfg, k)})
    print(f'{folder.path}: {task}, chance {task.chance:.3g}, attainable loss {task.min_loss}')
    rng = make_rng('validation', without_path(task))  # whatever the seed of the run
    validation = task.sample(rng, cfg.eval_sequences, cfg.block_size, 'validation')
    record = dict(options=vars(cfg), model_args=dataclasses.asdict(model.config),
                  task=str(task), data=task.record())
    session = contextlib.nullcontext()  # the other processes of torchrun write nothing
    if process.rank == 0:  # lock the folder; to resume, cut the log back to the checkpoint
        session = folder.session(record, process.device)
    if process.world > 1:
        dist.init_process_group()
    with session:
        model.to(process.device)
        try:
            train(cfg, process, task, model, to_device(validation, process.device), folder)
        except KeyboardInterrupt:
            print('\nstopped; the same command with --init_from=resume goes on from ckpt.pt')
            sys.exit(130)
    if process.world > 1:
        gc.collect()  # where something of the model is left, gloo can hang
        dist.destroy_process_group()


if __name__ == '__main__':
    with one_line_errors():
        options, given = configure(globals(), sys.argv[1:])
        main(SimpleNamespace(**options), given)
