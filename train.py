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
import signal
import sys
import time
from types import SimpleNamespace

if __name__ == '__main__':  # Ctrl-C while torch is loaded needs no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from checkpoint import STARTS, RunFolder, build_model, restore
from configurator import configure, find_place, one_line_errors, stop_signals, to_device
from eval import evaluate, flops_per_token, spectral_state
from model import GPT, GPTConfig, UserError
from tasks import make_rng, make_task, names_a_file

if importlib.util.find_spec('lab'):  # it registers more attentions, grids, tasks, ways to start
    import lab  # noqa: F401

# the run
out_dir = 'out/run'  # its folder: config.json, log.jsonl, ckpt.pt (latest), best.pt
init_from = 'scratch'  # or 'resume'; with lab/: a checkpoint's path, or 'hf:' and a Llama's name
overwrite = False  # True: a new run may replace the one in out_dir
seed = 0  # of the weights and the training data; the validation set is always the same
device = 'auto'  # 'auto' (cuda, else mps, else cpu), or one such as 'cuda:1'
dtype = 'auto'  # of matrix products: float32; bfloat16 or float16 where a GPU is fast at it
compile = 'auto'  # torch.compile: 'yes', 'no'; 'auto': for long jobs on cuda

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
init_std = 0.0  # of the initial weights; 0: 1/sqrt(inputs); GPT-2 has 0.02
attention = 'rope'  # 'rope', 'spectral', 'bifocal', 'tapa' or 'nope'
rope_base = 10000.0  # theta_i = rope_base^(-2i/hs): rope keeps it, spectral's Omega starts there
rope = 'geometric'  # the grid of frequencies; lab/ has 'linear', 'yarn:factor=4', ...
n_spectral_head = 0  # spectral key/value heads; 0: all, in bifocal half of them
spectral_shared = False  # one Omega, A, Phi for all spectral heads of a layer
learn = 'frequency,amplitude,phase'  # which of Omega, A and Phi are learned, or 'none'
phase_std = 1e-3  # Phi starts at N(0, phase_std^2), learned or not
phase_on = 'query'  # 'query', or 'both' as the paper's formula reads, where Phi cancels
log_scale = 0  # tokens; scores times ln(m+1) / ln(log_scale), for long strings; 0: off
tapa_alpha = 0.1  # exponent of the distance in TAPA's phase
tapa_theta = 0.5  # share of a head's dimensions in TAPA's amplitude, not its phase
tapa_phase = 'quadratic'  # 'quadratic' or 'linear'
tapa_scale = 2 * math.pi  # factor of TAPA's phase; 1 in its authors' code

# the optimizer: linear warm-up, then a cosine down to lr_end
optimizer = 'muon'  # Muon for the blocks' matrices, AdamW for the rest; 'adamw': AdamW for all
muon_lr = 0.02  # Muon's peak learning rate
max_iters = 1000  # updates; the schedule ends with them
learning_rate = 2e-3  # AdamW's peak; 0 freezes every parameter except Omega, A and Phi
lr_end = 0.0  # last learning rate, as a share of the peak
warmup_iters = 50  # updates of linear warm-up
weight_decay = 0.1  # of matrices that AdamW updates; with Muon, only of lm_head
beta1 = 0.9  # AdamW: decay of the mean of the gradients
beta2 = 0.99  # AdamW: decay of the mean of their squares
grad_clip = 1.0  # greatest norm of the gradient; 0: no limit
spectral_lr = 1e-2  # peak learning rate of Omega, A, Phi, or what your attention learns
frequency_decay = 0.0  # weight decay of Omega: it drags frequencies to zero
spectral_start = 0  # Omega, A and Phi do not change before this update

# the log
log_interval = 10  # iterations between log lines
eval_interval = 100  # iterations between validations, which save ckpt.pt, the best best.pt
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

    choices = dict(dtype='auto, float32, bfloat16, float16', compile='auto, yes, no',
                   optimizer='muon, adamw')
    for name, allowed in choices.items():
        require(name, getattr(cfg, name) in allowed.split(', '), f'one of {allowed}')
    for name in ('batch_size', 'gradient_accumulation_steps', 'max_iters', 'log_interval',
                 'eval_interval', 'eval_sequences'):
        require(name, 1 <= getattr(cfg, name) < 2**31, 'at least 1, and below 2**31')
    for name in ('beta1', 'beta2'):
        require(name, getattr(cfg, name) < 1, 'less than 1')
    divides = cfg.gradient_accumulation_steps % world == 0
    require('gradient_accumulation_steps', divides, f'a multiple of {world}, the processes')
    fields = {field.name for field in dataclasses.fields(GPTConfig)}
    for name in vars(cfg):  # an attribute without a type is no field: it would be ignored
        require(name, name in fields or not hasattr(GPTConfig, name),
                f'written with a type in GPTConfig, such as {name}: float = 0.0')


def start_model(cfg, task, folder):
    """The model to train: new, or that of the checkpoint in the folder of the run, or another."""
    rng = make_rng(cfg.seed, 'init')
    torch.manual_seed(int(rng.integers(2**63)))
    fields = [field.name for field in dataclasses.fields(GPTConfig)]
    args = {name: getattr(cfg, name) for name in fields if hasattr(cfg, name)}
    if cfg.init_from in ('scratch', 'resume'):
        config = GPTConfig(vocab_size=len(task.symbols), **args)
    folder.check()
    if cfg.init_from == 'scratch':
        return GPT(config)
    if cfg.init_from == 'resume':
        # options that must be what they were; the others may change
        folder.load(cfg, task, fixed={*args, 'task', 'eval_sequences', 'optimizer'})
        return build_model(folder.checkpoint, f'{cfg.out_dir}/ckpt.pt')
    name = cfg.init_from.partition(':')[0]
    start = STARTS.get(name, STARTS.get('checkpoint'))
    if start is None:
        raise UserError(f'init_from={cfg.init_from!r}: must be scratch or resume without lab/')
    return start(cfg.init_from, task, dict(args, vocab_size=len(task.symbols)))


def batches(cfg, task, place, start):
    """The micro-batches of this process, x and y (B, T), from iteration `start` on."""
    for it in range(start, cfg.max_iters + 1):
        for slot in range(place.rank, cfg.gradient_accumulation_steps, place.world):
            # the numbers depend on nothing but these names, so a resumed run has the same
            rng = make_rng(cfg.seed, 'train', it, slot)
            batch = task.sample(rng, cfg.batch_size, cfg.block_size)
            yield to_device(batch, place.device)


def wrap(model, cfg, place):
    """The model, compiled if that pays; and the same for all processes, which train it."""
    compiled = model
    tokens = cfg.max_iters * cfg.gradient_accumulation_steps * cfg.batch_size * cfg.block_size
    # compiling takes a minute: a job of fewer than 1e16 FLOP is done sooner without
    long_job = tokens * flops_per_token(model, cfg.block_size) > 1e16
    pays = place.device_type == 'cuda' and long_job
    if cfg.compile == 'yes' or (cfg.compile == 'auto' and pays):
        compiled = torch.compile(model)
    if place.world == 1:
        return compiled, compiled
    return compiled, DistributedDataParallel(compiled)


def check_finite(loss, grad_norm, it, scaler):
    """Raise UserError for a loss or a gradient that is no number: float16's may overflow."""
    if math.isfinite(loss) and (scaler.is_enabled() or math.isfinite(grad_norm)):
        return
    advice = 'try a lower learning rate'
    if it == 0:
        advice = 'check the attention scores, and that the task has targets'
    raise UserError(f'the training loss is {loss:.4g} and its gradient {grad_norm:.4g} '
                    f'at iteration {it}: {advice}')


def print_end(cfg, task, it, stop, best_val_loss):
    """Say how training ended, and what to do now."""
    if stop:
        name = signal.Signals(stop).name
        print(f'stopped by {name} at iteration {it}; continue with --init_from=resume')
        return
    again = ''  # eval.py opens no file and no vocabulary that only a checkpoint names
    if names_a_file(str(task)):
        again = f' --task={task}'
    print(f'done: best val loss {best_val_loss:.5f}; now: python eval.py {cfg.out_dir}{again}')


def train(cfg, place, task, model, validation, folder):
    """Train the model on the task. Returns the number of the signal that stopped it, or 0."""
    optimizers = model.configure_optimizers(
        cfg.learning_rate, cfg.weight_decay, (cfg.beta1, cfg.beta2), cfg.spectral_lr,
        cfg.frequency_decay, cfg.muon_lr if cfg.optimizer == 'muon' else None)
    scaler = torch.amp.GradScaler(place.device_type, enabled=place.dtype == 'float16')
    start, best_val_loss, seconds = 0, math.inf, 0.0
    if folder.checkpoint:
        start, best_val_loss, seconds = restore(folder.checkpoint, optimizers, scaler)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    compiled, ddp_model = wrap(model, cfg, place)

    print(f'{cfg.attention} on {place.device}, {place.dtype}, '
          f'compiled: {compiled is not model}, processes: {place.world}')
    for group in groups:
        n = sum(p.numel() for p in group['params'])
        print(f'  {n:>10,} {group["role"]:9s} learning rate {group["peak_lr"]:g}')
    micro_steps = cfg.gradient_accumulation_steps // place.world
    tokens = cfg.gradient_accumulation_steps * cfg.batch_size * cfg.block_size  # in an update
    flops = tokens * flops_per_token(model, cfg.block_size)
    data = batches(cfg, task, place, start)
    x, y = next(data)
    caught = stop_signals()
    clock, clock_it = time.perf_counter(), start
    started = clock - seconds  # so that `seconds` in the log count earlier sessions, too

    # here `it` updates have been made; the last round only logs and saves
    for it in range(start, cfg.max_iters + 1):
        lr_factor = schedule(it, cfg.max_iters, cfg.warmup_iters, cfg.lr_end)
        for group in groups:
            group['lr'] = group['peak_lr'] * lr_factor

        # the gradient of the global batch, a micro-batch at a time
        loss = 0.0
        for micro_step in range(micro_steps):
            if place.world > 1:  # the last backward pass takes the mean over the processes
                ddp_model.require_backward_grad_sync = (micro_step == micro_steps - 1)
            with place.autocast():
                _, micro_loss = ddp_model(x, y)
            x, y = next(data, (None, None))  # the CPU draws the next batch while the GPU works
            loss = loss + micro_loss.detach() / micro_steps
            scaler.scale(micro_loss / micro_steps).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if it < cfg.spectral_start:
            for p in model.positional_parameters():
                p.grad = None
        grad_norm = get_total_norm([p.grad for p in model.parameters() if p.grad is not None])

        # log, validate, save
        last = it == cfg.max_iters
        evaluating = last or it % cfg.eval_interval == 0
        logging = evaluating or it % cfg.log_interval == 0
        stop = 0  # the number of a signal
        if logging or place.world == 1:
            stop = max(caught, default=0)
        if logging and place.world > 1:  # the mean loss; a signal to one process stops all
            total = torch.stack([loss / place.world, loss.new_tensor(stop)])
            dist.all_reduce(total)
            loss = total[0]
            if total[1] > 0:
                stop = stop or signal.SIGTERM
        if logging or stop:
            check_finite(loss, grad_norm, it, scaler)
        if (logging or stop) and place.rank == 0:
            now = time.perf_counter()
            speed = (it - clock_it) / (now - clock)
            line = dict(iter=it, train_loss=loss.item(), lr=cfg.learning_rate * lr_factor,
                        grad_norm=grad_norm.item(), iters_per_second=speed,
                        tokens_per_second=speed * tokens, tflop_per_second=speed * flops / 1e12,
                        seconds=now - started)
            text = f'{it:>6d}/{cfg.max_iters}  train loss {loss:.4f}'
            if speed > 0:
                left = (cfg.max_iters - it) / speed / 60
                text += (f'  {speed:.1f} it/s  {line["tokens_per_second"]:,.0f} tokens/s'
                         f'  {line["tflop_per_second"]:.2g} TFLOP/s  {left:.1f} min left')
            print(text, flush=True)
            state, best = None, False
            if evaluating:
                with place.autocast():
                    val_loss, val_acc, _ = evaluate(compiled, *validation, cfg.batch_size)
                best = val_loss <= best_val_loss
                best_val_loss = min(best_val_loss, val_loss)
                line = spectral_state(model) | line | dict(val_loss=val_loss, val_acc=val_acc)
                print(f'        val loss {val_loss:.5f}, accuracy {100 * val_acc:.2f} %'
                      + (', the best so far' if best else ''), flush=True)
            if evaluating or stop:
                state = dict(iter=it, best_val_loss=best_val_loss, model=model.state_dict(),
                             optimizers=[optimizer.state_dict() for optimizer in optimizers],
                             scaler=scaler.state_dict(), rng=torch.get_rng_state(),
                             seconds=time.perf_counter() - started)
            folder.write(line, state, best)
            clock, clock_it = time.perf_counter(), it
        if last:
            stop = 0  # the run is complete
        if last or stop:
            break

        # the update, unless float16 gradients overflowed
        if cfg.grad_clip:
            clip_grads_with_norm_(model.parameters(), cfg.grad_clip, grad_norm)
        if not scaler.is_enabled() or grad_norm.isfinite():
            for optimizer in optimizers:
                optimizer.step()
        scaler.update()
        model.zero_grad(set_to_none=True)

    print_end(cfg, task, it, stop, best_val_loss)
    return stop


def main(cfg):
    """Train as the options `cfg` say, alone or as one of the processes of torchrun."""
    place = find_place(cfg.device, cfg.dtype)
    if place.rank > 0:
        sys.stdout = open(os.devnull, 'w')  # the first process prints, validates and saves
    check_options(cfg, place.world)
    if place.device_type == 'cuda':
        torch.set_float32_matmul_precision('high')  # TF32
    task = make_task(cfg.task)
    folder = RunFolder(cfg.out_dir, cfg.init_from == 'resume', cfg.overwrite)
    model = start_model(cfg, task, folder)
    frozen = not any(p.requires_grad for p in model.positional_parameters())
    if cfg.learning_rate == 0 and (frozen or cfg.spectral_lr == 0):
        raise UserError('learning_rate=0: must be positive, for nothing else is learned')
    print(f'{cfg.out_dir}: {task}, chance {task.chance:.3g}, attainable loss {task.min_loss}')
    rng = make_rng('validation', str(task))
    validation = task.sample(rng, cfg.eval_sequences, cfg.block_size, 'validation')
    record = dict(options=vars(cfg), model_args=dataclasses.asdict(model.config),
                  task=str(task), data=task.record())
    session = contextlib.nullcontext()
    if place.rank == 0:
        session = folder.session(record, place.device)
    if place.world > 1:
        dist.init_process_group()
    with session:
        model.to(place.device)
        stop = train(cfg, place, task, model, to_device(validation, place.device), folder)
    if place.world > 1:
        gc.collect()  # where something of the model is left, gloo can hang
        dist.destroy_process_group()
    if stop:
        sys.exit(128 + stop)


if __name__ == '__main__':
    with one_line_errors():
        main(SimpleNamespace(**configure(globals(), sys.argv[1:])))
