"""
Train a GPT on a formal language, or on text. The options are the global variables below.

    python train.py config/dyck3_spectral.py                             # a run, on any device
    python train.py config/dyck3_spectral.py --seed=1 --out_dir=out/one  # with other options
    python train.py config/dyck3_spectral.py --init_from=resume          # go on where it stopped
"""

import math
import sys
import time
from types import SimpleNamespace

import torch
from torch.nn.utils import clip_grad_norm_

from checkpoint import RunFolder, build_model, current_state, restore, warn_of_other_text
from configurator import Graphed, choose_hardware, configure, one_line_errors, to_device
from eval import evaluate, lab, learned_state
from model import GPT, GPTConfig, UserError
from optim import configure_optimizers
from tasks import make_rng, make_task

# the run
out_dir = 'out/run'  # its folder: config.json, log.jsonl, ckpt.pt (latest), best.pt
init_from = 'scratch'  # or 'resume'; with lab/, the path of another run's checkpoint
overwrite = False  # True: a new run may replace the one in out_dir
seed = 0  # of the weights and the training data; the validation set is always the same
device = 'auto'  # 'auto' (cuda, else mps, else cpu), or one such as 'cuda:1'
dtype = 'auto'  # of matrix products: 'float32', 'bfloat16', or the faster one on a GPU
graph = False  # True, on cuda: one CUDA graph computes the gradient: faster for small models
compile = 'auto'  # torch.compile: 'yes', 'no', or 'auto': on cuda, from 2000 updates on

# the data: fresh batches, no epochs
task = 'dyck'  # a task in tasks.py; parameters follow a ':', such as 'modulo:modulus=11'
block_size = 64  # T, tokens in a training sequence
batch_size = 64  # B, sequences in a micro-batch
gradient_accumulation_steps = 1  # micro-batches in an update

# the model: fields of GPTConfig
n_layer = 2  # blocks
n_head = 2  # heads of attention in a block
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
tapa_alpha = 0.1  # exponent of the distance in the phase; the paper's. On text 0.5 is better
tapa_theta = 0.5  # share of a head's dimensions in the amplitude; the others set the phase
tapa_scale = 2 * math.pi  # factor of the phase, 6.2832; the paper's. On text 1 is better

# the optimizer
max_iters = 1000  # updates; the schedule ends with them
stop_loss = 0.0  # nats: a validation loss below it ends the run, for searches; 0: none
warmup_iters = 50  # updates of linear warm-up
lr_end = 0.0  # last learning rate, as a share of the peak
optimizer = 'muon'  # Muon for the blocks' matrices, AdamW for the rest; 'adamw': AdamW for all
muon_lr = 0.01  # Muon's peak learning rate
learning_rate = 4e-3  # AdamW's peak learning rate
positional_lr = 1e-2  # peak rate of Omega, A, Phi, and of an nn.Parameter of your attention
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


def check_options(cfg, hardware):
    """Raise UserError for options that cannot be. GPTConfig and make_task check theirs."""
    def require(name, ok, allowed):
        if not ok:
            raise UserError(f'{name}={getattr(cfg, name)!r}: must be {allowed}')

    require('compile', cfg.compile in ('auto', 'yes', 'no'), 'auto, yes or no')
    require('optimizer', cfg.optimizer in ('muon', 'adamw'), 'muon or adamw')
    for name in ('batch_size', 'gradient_accumulation_steps', 'max_iters', 'log_interval',
                 'eval_interval', 'eval_sequences'):
        require(name, getattr(cfg, name) >= 1, 'at least 1')
    require('out_dir', cfg.out_dir, 'the name of a folder')
    for name in ('muon_lr', 'learning_rate', 'positional_lr', 'weight_decay', 'grad_clip'):
        require(name, getattr(cfg, name) >= 0, 'at least 0')
    for name in ('beta1', 'beta2'):
        require(name, 0 <= getattr(cfg, name) < 1, 'at least 0, and less than 1')
    require('graph', hardware.device_type == 'cuda' or not cfg.graph, 'False, except on cuda')


def start_model(cfg, given, task, checkpoint):
    """A new model, or that of the run that is resumed, or with the lab that of another run."""
    if checkpoint:
        return build_model(checkpoint, f'{cfg.out_dir}/ckpt.pt')
    # the weights have a seed of their own
    torch.manual_seed(int(make_rng(cfg.seed, 'init').integers(2**63)))
    if cfg.init_from == 'scratch':
        args = {name: value for name, value in vars(cfg).items() if hasattr(GPTConfig, name)}
        return GPT(GPTConfig(vocab_size=len(task.symbols), **args))
    if lab is None:
        raise UserError(f'init_from={cfg.init_from!r}: must be scratch or resume without lab/')
    return lab.start_from(cfg, given, task)


def batches(cfg, task, hardware, start):
    """The micro-batches, x and y (B, T), from update `start` on. One is drawn ahead."""
    for it in range(start, cfg.max_iters + 1):
        for slot in range(cfg.gradient_accumulation_steps):
            # seeded by nothing else: a resumed run has the same data
            rng = make_rng(cfg.seed, 'train', it, slot)
            batch = task.sample(rng, cfg.batch_size, cfg.block_size)
            yield to_device(batch, hardware.device)


def check_finite(it, **numbers):
    """Raise UserError for a number that is infinite or NaN, at update `it`."""
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise UserError(f'the {name} is {value:.4g} at update {it}: try a lower learning rate, '
                            'or look at what your attention computes')


def train(cfg, hardware, task, model, validation, folder):
    """Train the model on the task."""
    optimizers = configure_optimizers(model, cfg)
    start, best_val_loss, seconds = 0, math.inf, 0.0
    if folder.checkpoint:  # start_model has loaded it, to resume
        start, best_val_loss, seconds = restore(folder.checkpoint, model, optimizers)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    long_job = hardware.device_type == 'cuda' and cfg.max_iters >= 2000  # compiling takes a minute
    compiled = cfg.compile == 'yes' or (cfg.compile == 'auto' and long_job)
    if compiled:
        model.compile()

    print(f'{cfg.attention} on {hardware.device}, {hardware.dtype}, compiled: {compiled}')
    for group in groups:
        n = sum(p.numel() for p in group['params'])
        print(f'  {n:>10,} {group["role"]:17s} learning rate {group["peak_lr"]:g}')
    micro_steps = cfg.gradient_accumulation_steps
    tokens = micro_steps * cfg.batch_size * cfg.block_size  # in an update
    data = batches(cfg, task, hardware, start)
    x, y = next(data)

    def gradient(x, y):
        """Add the gradient of a micro-batch to that of the parameters. Returns its loss."""
        with hardware.autocast():
            loss = model(x, y)[1] / micro_steps
        loss.backward()
        return loss.detach()

    if cfg.graph:
        gradient = Graphed(gradient)
    began = time.perf_counter() - seconds  # the time of earlier sessions counts, too

    # `it` counts the updates that are done. The last round has no update.
    for it in range(start, cfg.max_iters + 1):
        last = it == cfg.max_iters

        # validate, and save: from this state a resumed run goes on, and logs its line once more
        if it == start or last or it % cfg.eval_interval == 0:
            with hardware.autocast():
                val_loss, val_acc, _ = evaluate(model, *validation, cfg.batch_size)
            check_finite(it, val_loss=val_loss)  # before an old run is overwritten
            best = val_loss <= best_val_loss  # or equal: a resumed run writes it again
            best_val_loss = min(best_val_loss, val_loss)
            print(f'{it:>6d}/{cfg.max_iters}  val loss {val_loss:.5f}, '
                  f'accuracy {100 * val_acc:.2f} %', flush=True)
            seconds = time.perf_counter() - began
            line = dict(iter=it, val_loss=val_loss, val_acc=val_acc, seconds=seconds)
            state = current_state(it, best_val_loss, seconds, model, optimizers)
            folder.write(learned_state(model) | line, state, best)

        # stop: all updates are done, or the loss is as low as was asked for
        if last or best_val_loss < cfg.stop_loss:
            break

        # the learning rates: all groups follow one schedule, each from its own peak
        lr_factor = schedule(it, cfg.max_iters, cfg.warmup_iters, cfg.lr_end)
        for group in groups:
            group['lr'] = group['peak_lr'] * lr_factor

        # the gradient of the global batch, a micro-batch at a time
        loss = 0.0
        for _ in range(micro_steps):
            loss += gradient(x, y)
            # the CPU draws the next batch while the GPU works
            x, y = next(data)

        # clip it: one bad batch must not throw the weights far away. The norm is the one before
        grad_norm = clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)

        # log the training loss. To read a number off a GPU is to wait for it, so not every time
        if it % cfg.log_interval == 0:
            check_finite(it, train_loss=loss, grad_norm=grad_norm)
            seconds = time.perf_counter() - began
            speed = tokens * it / seconds
            text = f'{it:>6d}/{cfg.max_iters}  train loss {loss:.4f}'
            if it > 0:
                minutes_left = (cfg.max_iters - it) * seconds / it / 60
                text += f'  {speed:,.0f} tokens/s  {minutes_left:.1f} min left'
            print(text, flush=True)
            line = dict(iter=it, train_loss=loss.item(), lr=cfg.learning_rate * lr_factor,
                        grad_norm=grad_norm.item(), tokens_per_second=speed, seconds=seconds)
            folder.write(line)

        # the update. Gradients become None, or 0 where a graph holds on to their memory
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=not cfg.graph)

    print(f'done: best val loss {best_val_loss:.5f}; now: python eval.py {folder.path}')


def main(cfg, given=frozenset(), run_folder=RunFolder):
    """Train as the options `cfg` say; a config or the command line has set those in `given`."""
    folder = run_folder(cfg.out_dir, cfg.init_from == 'resume', cfg.overwrite)
    if folder.resume:
        folder.load(cfg, given)  # and the options that were not given

    hardware = choose_hardware(cfg.device, cfg.dtype)
    check_options(cfg, hardware)
    if hardware.device_type == 'cuda':
        torch.set_float32_matmul_precision('high')  # TF32
    with folder.locked():
        task = make_task(cfg.task)
        if folder.checkpoint:
            warn_of_other_text(folder.checkpoint, task)
        model = start_model(cfg, given, task, folder.checkpoint)
        print(f'{folder.path}: {task}, headline chance {task.chance:.3g}, '
              f'attainable loss {task.min_loss}')

        # the validation set is the same in all runs, whatever their seed
        rng = make_rng('validation', task.spec(without='path'))
        validation = task.sample(rng, cfg.eval_sequences, cfg.block_size, 'validation')
        validation = to_device(validation, hardware.device)
        # what is saved with each state
        record = dict(options=vars(cfg), model_args=vars(model.config),
                      task=str(task), data=task.fingerprint())
        folder.begin(record, hardware.device)
        try:
            train(cfg, hardware, task, model.to(hardware.device), validation, folder)
        except KeyboardInterrupt:
            print('\nstopped')
            if folder.resume or folder.begun:  # else ckpt.pt is none, or an old run's
                print('the same command with --init_from=resume goes on from ckpt.pt')
            sys.exit(130)


if __name__ == '__main__':
    with one_line_errors():
        options, given_names = configure(globals(), sys.argv[1:])
        main(SimpleNamespace(**options), given_names)
