"""
Train a GPT on a formal language, or on text. The options are the global variables below.

    python train.py config/dyck3_spectral.py                                   # a run, on whatever device there is
    python train.py config/dyck3_spectral.py --seed=1 --out_dir=out/dyck3-1    # the same, with options overridden
    python train.py config/dyck3_spectral.py --init_from=resume                # continue it where it stopped
    torchrun --standalone --nproc_per_node=2 train.py config/dyck3_spectral.py --gradient_accumulation_steps=2
"""

import dataclasses
import gc
import itertools
import json
import math
import os
import platform
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from configurator import autocast, choose_device, configure, free_memory, git_commit, processor_name
from model import GPT, GPTConfig, load_checkpoint
from tasks import make_task, stream

# the run
out_dir = 'out/run'  # folder of the run: config.json, log.jsonl, ckpt.pt (last), best.pt
init_from = 'scratch'  # or 'resume' (out_dir/ckpt.pt), the path of a checkpoint, or 'hf:' and the folder or hub name of a Llama
overwrite = False  # True: a new run may replace the one in out_dir
seed = 0  # of the weights and the training data; the validation set is the same for all seeds
device = 'auto'  # 'auto' (cuda, else mps, else cpu), or a torch device such as 'cuda:1'
dtype = 'auto'  # 'float32', 'bfloat16', 'float16'; 'auto' is bfloat16 on cuda and float32 elsewhere
compile = 'auto'  # torch.compile: 'yes', 'no'; 'auto' is yes on cuda and no elsewhere
# the data: fresh batches, no epochs
task = 'dyck'  # a task of tasks.py with what differs from its defaults, such as 'modulo:modulus=11'
block_size = 64  # T, tokens in a training sequence; no limit to the model, which has no absolute positions
batch_size = 64  # sequences in a micro-batch
gradient_accumulation_steps = 1  # micro-batches in a global batch, shared out among the processes
# the model: the fields of GPTConfig in model.py; with init_from='hf:...' its shape, and what else is left at its default, is the Llama's
n_layer = 2  # blocks
n_head = 2  # query heads
n_kv_head = 0  # key/value heads, each shared by n_head / n_kv_head query heads; 0: n_head
n_embd = 64  # C, width of the residual stream
head_dim = 0  # size of a head; 0: n_embd / n_head
n_inner = 0  # width of the MLP; 0: 8/3 n_embd, to the nearest multiple of 8
norm_eps = 1e-5  # what RMSNorm adds to the mean square
tie_embeddings = False  # use the embedding as the output matrix too
init_std = 0.0  # standard deviation of the first weights; 0: by width, 1/sqrt(inputs); GPT-2 has 0.02
attention = 'rope'  # 'rope', 'spectral', 'bifocal', 'tapa' or 'nope'
rope_base = 10000.0  # theta_i = rope_base^(-2i/hs): fixed for rope, where Omega starts for spectral
rope_grid = 'geometric'  # or 'resonance' (whole wavelengths), 'harmonic' (2 pi j / rope_period), 'linear' (even steps to pi)
rope_period = 0  # tokens; for the harmonic grid: an oracle that knows the task's period
rope_scaling = 'none'  # longer contexts without retraining, for a rotary checkpoint to start from: 'pi', 'ntk', 'yarn' or 'llama3'
rope_factor = 1.0  # how many times longer they are
rope_original = 0  # tokens that the frequencies were trained for, which yarn and llama3 ask; 0: the checkpoint's block_size
yarn_beta_fast = 32.0  # turns within rope_original from which yarn leaves a pair alone; about 4 below some 200 tokens
yarn_beta_slow = 1.0  # turns within rope_original up to which yarn interpolates a pair in full
yarn_gain = 0.0  # what yarn multiplies queries and keys by; 0: 0.1 ln(rope_factor) + 1
llama3_high = 4.0  # turns within rope_original from which llama3 leaves a pair alone
llama3_low = 1.0  # turns within rope_original up to which llama3 interpolates a pair in full
n_spectral_head = -1  # bifocal: how many of a layer's key/value heads are spectral; -1: half
spectral_shared = False  # one Omega, A, Phi for all spectral heads of a layer
learn_frequency = True  # False: Omega stays at theta
learn_amplitude = True  # False: A stays at 1
learn_phase = True  # False: Phi stays at its start
phase_std = 1e-3  # Phi starts at N(0, phase_std^2)
phase_on = 'query'  # 'query', or 'both' as the paper's formula reads, where Phi cancels
log_scale = 0  # tokens; scores times ln(m+1) / ln(log_scale), so that attention stays as sharp in long strings; 0: off
tapa_alpha = 0.1  # exponent of the distance in TAPA's phase
tapa_theta = 0.5  # share of a head's dimensions in TAPA's amplitude; the others make its phase
tapa_phase = 'quadratic'  # 'quadratic' or 'linear'
tapa_fused = True  # the fused kernel on cuda, where Triton is; False: write the scores out
# the optimiser: AdamW, linear warm-up, cosine to lr_end
max_iters = 1000  # updates; the schedule ends with them
learning_rate = 2e-3  # peak, of all but the spectral parameters
lr_end = 0.0  # final learning rate, as a share of the peak; Adam's steps are as long as the rate: a frequency rests when it is 0
warmup_iters = 50  # updates of linear warm-up
weight_decay = 0.1  # of matrices only
beta1 = 0.9  # AdamW: decay of the mean of the gradients
beta2 = 0.99  # AdamW: decay of the mean of their squares
grad_clip = 1.0  # greatest norm of the gradient; 0: no limit
spectral_lr = 1e-2  # peak learning rate of Omega, A and Phi, before the schedule
frequency_decay = 0.0  # weight decay of Omega; more than 0 drags every frequency to zero
amplitude_decay = 0.0  # weight decay of A; more than 0 silences the pairs that nothing needs
train_only = 'all'  # or 'spectral': Omega, A and Phi alone, and every other weight stays as it started
spectral_start = 0  # update from which Omega, A and Phi may move; they wait frozen until then
# the log
log_interval = 10  # iterations between log lines
eval_interval = 100  # iterations between validations, each of which saves ckpt.pt, and also best.pt if its loss is the lowest so far
eval_sequences = 512  # validation sequences, the same ones every time

RUN_FILES = ('config.json', 'log.jsonl', 'ckpt.pt', 'best.pt')


def schedule(it, max_iters, warmup_iters, end):
    """The learning rate of update `it` (from 0) as a share of its peak: linear warm-up, then cosine down to `end`."""
    if it < warmup_iters:
        return (it + 1) / (warmup_iters + 1)
    progress = min(1.0, (it - warmup_iters) / max(1, max_iters - warmup_iters))
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))


def to_device(array, device):
    """A numpy array as a tensor on `device`; to cuda the copy is queued behind what runs there, and nobody waits for it."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type == 'cuda':
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@torch.no_grad()
def evaluate(model, x, y, batch_size):
    """Mean loss in nats and accuracy over the targets of x, y (n, T) that are not -1."""
    loss, right, count = 0.0, 0, 0
    for xb, yb in zip(x.split(batch_size), y.split(batch_size)):
        logits, mean_loss = model(xb, yb)
        scored = yb != -1
        loss += mean_loss.item() * scored.sum().item()
        right += ((logits.argmax(dim=-1) == yb) & scored).sum().item()
        count += scored.sum().item()
    return loss / count, right / count


def spectral_state(model):
    """Omega, A and Phi of every layer, nested lists (n_layer, heads, P), and the norms of their gradients."""
    state = {}
    for name in ('Omega', 'A', 'Phi') if model.spectral() else ():
        parameters = [getattr(rotary, name) for rotary in model.spectral()]
        state[name] = [[[float(f'{v:.7g}') for v in head] for head in p.tolist()] for p in parameters]
        state[f'{name}_grad_norm'] = math.sqrt(sum(p.grad.square().sum().item() for p in parameters if p.grad is not None))
    return state


def replace(path, write):
    """Let `write` fill a file that then takes the place of `path`: a process that dies here leaves the old one whole."""
    temporary = path.with_name(path.name + '.tmp')
    with open(temporary, 'wb') as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save(checkpoint, path):
    """Write a checkpoint to `path`, whole or not at all."""
    replace(path, lambda file: torch.save(checkpoint, file))


def duration(seconds):
    """Seconds as people say them: 42s, 3m 05s, 2h 00m."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}h {minutes:02d}m' if hours else f'{minutes}m {seconds:02d}s' if minutes else f'{seconds}s'


def check_options(cfg, world):
    """Refuse what cannot run, before anything is built or replaced."""
    for name, allowed in (('dtype', ('auto', 'float32', 'bfloat16', 'float16')), ('compile', ('auto', 'yes', 'no')),
                          ('train_only', ('all', 'spectral'))):
        if getattr(cfg, name) not in allowed:
            raise ValueError(f'{name}={getattr(cfg, name)!r}: must be one of {", ".join(allowed)}')
    for name in ('batch_size', 'gradient_accumulation_steps', 'max_iters', 'log_interval', 'eval_interval', 'eval_sequences'):
        if getattr(cfg, name) < 1:
            raise ValueError(f'{name}={getattr(cfg, name)}: must be at least 1')
    for name in ('seed', 'warmup_iters', 'learning_rate', 'spectral_lr', 'weight_decay', 'frequency_decay', 'amplitude_decay',
                 'grad_clip', 'spectral_start', 'lr_end'):
        if getattr(cfg, name) < 0:
            raise ValueError(f'{name}={getattr(cfg, name)}: must not be negative')
    for name in ('beta1', 'beta2'):
        if not 0 <= getattr(cfg, name) < 1:
            raise ValueError(f'{name}={getattr(cfg, name)}: must be at least 0 and less than 1')
    if cfg.gradient_accumulation_steps % world:
        raise ValueError(f'gradient_accumulation_steps={cfg.gradient_accumulation_steps}: must be a multiple of the {world} '
                         'processes, which share out the micro-batches')
    held = [name for name in ('ckpt.pt', 'best.pt') if (Path(cfg.out_dir) / name).exists()]
    if held and cfg.init_from != 'resume' and not cfg.overwrite:
        raise FileExistsError(f'out_dir={cfg.out_dir!r} already holds a run ({", ".join(held)}): continue it with '
                              '--init_from=resume, choose another --out_dir, or replace it with --overwrite=True')
    if cfg.init_from == 'resume' and not (Path(cfg.out_dir) / 'ckpt.pt').exists():
        raise FileNotFoundError(f'init_from=resume: there is no {cfg.out_dir}/ckpt.pt to continue')


def build_model(cfg, task, say):
    """The model at its start, and the checkpoint to resume (else None)."""
    torch.manual_seed(int(stream(cfg.seed, 'init').integers(2**63)))
    names = [field.name for field in dataclasses.fields(GPTConfig) if field.name != 'vocab_size']
    model_args = dict(vocab_size=task.vocab_size, **{name: getattr(cfg, name) for name in names})
    if cfg.init_from == 'scratch':
        return GPT(GPTConfig(**model_args)), None
    if cfg.init_from.startswith('hf:'):
        given = {field.name: model_args[field.name] for field in dataclasses.fields(GPTConfig)
                 if field.name not in ('vocab_size', 'block_size')  # which are the data's here, and not the model's
                 and model_args[field.name] != field.default}
        model = GPT.from_pretrained(cfg.init_from.removeprefix('hf:'), **given)
        if model.config.vocab_size < model_args['vocab_size']:
            raise ValueError(f'{cfg.init_from} knows {model.config.vocab_size} tokens, and task {task} has {model_args["vocab_size"]}')
        return model, None
    resume = cfg.init_from == 'resume'
    path = Path(cfg.out_dir) / 'ckpt.pt' if resume else Path(cfg.init_from)
    checkpoint = load_checkpoint(path)
    if make_task(checkpoint['task']).symbols != task.symbols:
        raise ValueError(f'{path} was trained on task {checkpoint["task"]}, whose symbols are not those of {task}')
    before = {'train_only': 'all', **checkpoint['options']} if resume else checkpoint['model_args']  # before there was the option
    ours = {key: value for key, value in vars(cfg).items() if key not in ('init_from', 'overwrite')}
    differences = [key for key, old in before.items() if ours.get(key, old) != old]
    for key in differences:
        say(f'{path}: {key} was {before[key]!r} and is now {ours[key]!r}')
    if not resume:
        model_args['vocab_size'] = checkpoint['model_args']['vocab_size']  # it may know more tokens than the task
        return GPT.from_checkpoint(path, **model_args), None
    if fixed := [key for key in differences if key in model_args or key in ('task', 'eval_sequences', 'train_only')]:
        raise ValueError(f'{path} cannot resume with another {", ".join(fixed)}; to start a new run from its weights, '
                         f'give --init_from={path} and another --out_dir')
    if checkpoint.get('data', {}).get('sha256') != task.record().get('sha256'):
        raise ValueError(f'{path} cannot resume: the text of {task} is not what it was')
    if checkpoint['iter'] > cfg.max_iters:
        raise ValueError(f'max_iters={cfg.max_iters}: {path} is at iteration {checkpoint["iter"]} already')
    return GPT.from_checkpoint(path), checkpoint


def freeze_all_but_spectral(model):
    """Let Omega, A and Phi alone be trained. Raises ValueError for a model in which nothing is left to train then."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad &= '.rotary.' in name
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"train_only='spectral': attention={model.config.attention!r} has no Omega, A or Phi to train"
                         + (': learn_frequency, learn_amplitude and learn_phase are all False' if model.spectral() else
                            "; it must be 'spectral' or 'bifocal', with n_spectral_head of at least 1"))


def open_run(cfg, model_args, device, start, start_over, commit, data):
    """Make out_dir a new run, or cut the log of the old one back to iteration `start`; note what runs, and with what."""
    folder = Path(cfg.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    session = dict(argv=sys.argv, start=start, date=time.strftime('%Y-%m-%d %H:%M:%S %z'), commit=commit,
                   python=platform.python_version(), torch=str(torch.__version__), numpy=np.__version__, device=device,
                   processor=torch.cuda.get_device_name(device) if device.startswith('cuda') else processor_name(),
                   threads=torch.get_num_threads(), **({'data': data} if data else {}))
    sessions, log = [], []
    if start_over:
        for name in RUN_FILES:
            (folder / name).unlink(missing_ok=True)
    else:
        sessions = json.loads((folder / 'config.json').read_text())['sessions']
        lines = (folder / 'log.jsonl').read_text().splitlines(keepends=True)
        log = [line for line in lines if line.endswith('\n') and json.loads(line)['iter'] < start]
    for measured in folder.glob('eval*.json'):  # another model
        measured.unlink()
    replace(folder / 'log.jsonl', lambda file: file.write(''.join(log).encode()))
    config = json.dumps(dict(options=vars(cfg), model_args=model_args, sessions=sessions + [session]), indent=2) + '\n'
    replace(folder / 'config.json', lambda file: file.write(config.encode()))


@contextmanager
def stop_requests():
    """A list to which Ctrl-C and SIGTERM append their number, once; the next one kills."""
    requests = []

    def request(number, frame):
        requests.append(number)
        signal.signal(number, signal.SIG_DFL)

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(cfg):
    """Train as the options `cfg` say. Raises ValueError, FileExistsError or FileNotFoundError before anything is lost."""
    with stop_requests() as requests:
        run(cfg, requests)


def run(cfg, stop_requests):
    """The run itself, until it is done or `stop_requests` is no longer empty."""
    # where: one process, or one per torchrun worker
    ddp = 'RANK' in os.environ
    rank, local_rank = (int(os.environ.get(name, 0)) for name in ('RANK', 'LOCAL_RANK'))
    world = int(os.environ.get('WORLD_SIZE', 1))
    check_options(cfg, world)
    on_each = ddp and cfg.device in ('auto', 'cuda') and torch.cuda.is_available()
    device = choose_device(f'cuda:{local_rank}' if on_each else cfg.device)
    device_type = torch.device(device).type
    on_cuda = device_type == 'cuda'
    dtype = ('bfloat16' if on_cuda else 'float32') if cfg.dtype == 'auto' else cfg.dtype
    cast = autocast(device, dtype)
    if on_cuda:
        torch.cuda.set_device(device)
    say = print if rank == 0 else lambda *args, **kwargs: None
    commit = git_commit()  # of the code that runs, whatever happens to the files meanwhile

    # what: the task, the model, its optimiser
    task = make_task(cfg.task)
    validation = task.sample(stream('validation', str(task)), cfg.eval_sequences, cfg.block_size, 'validation')
    val_x, val_y = (to_device(array, device) for array in validation)
    model, resumed = build_model(cfg, task, say)
    need, free = model.config.memory(cfg.batch_size, cfg.block_size, training=True, device=device), free_memory(device)
    if need > 2 * free:  # the estimate is a float32's, and rough
        raise ValueError(f'batch_size={cfg.batch_size}, block_size={cfg.block_size}: a step needs about {need / 2**30:.0f} GiB, and '
                         f'{free / 2**30:.0f} GiB are free on {device}')
    if cfg.train_only == 'spectral':
        freeze_all_but_spectral(model)
    model.to(device)
    optimizer = model.configure_optimizers(cfg.learning_rate, cfg.weight_decay, (cfg.beta1, cfg.beta2), cfg.spectral_lr,
                                           cfg.frequency_decay, cfg.amplitude_decay)
    scaler = torch.amp.GradScaler(device_type, enabled=dtype == 'float16')
    start, best_val_loss, seconds_before = 0, math.inf, 0.0
    if resumed:
        cfg.init_from = resumed['options']['init_from']  # where the run came from is what its files say
        start, best_val_loss, seconds_before = resumed['iter'], resumed['best_val_loss'], resumed['seconds']
        groups = optimizer.state_dict()['param_groups']  # the options' learning rates and decay, not the checkpoint's
        optimizer.load_state_dict({'state': resumed['optimizer']['state'], 'param_groups': groups})
        scaler.load_state_dict(resumed['scaler'])
        torch.set_rng_state(resumed['torch_rng'])
        if on_cuda and resumed['cuda_rng'] is not None:
            torch.cuda.set_rng_state(resumed['cuda_rng'], device)
    if ddp:
        dist.init_process_group('nccl' if on_cuda else 'gloo')
    compiled = torch.compile(model) if cfg.compile == 'yes' or (cfg.compile == 'auto' and on_cuda) else model
    wrapped = DistributedDataParallel(compiled) if ddp else compiled
    say(f'task {task}: {task.vocab_size} symbols, chance {task.chance:.3g}, floor {"unknown" if math.isnan(task.floor) else task.floor}')
    say(f'{model.config.attention} on {device}, {dtype}, compile {"off" if compiled is model else "on"}, processes {world}')
    for group in optimizer.param_groups:
        say(f'  {group["role"]:11s} {sum(p.numel() for p in group["params"]):>10,} parameters, lr {group["peak_lr"]:g}, '
            f'weight decay {group["weight_decay"]:g}')
    if frozen := sum(p.numel() for p in model.parameters() if not p.requires_grad):
        say(f'  {"frozen":11s} {frozen:>10,} parameters')
    spectral = [p for rotary in model.spectral() for p in rotary.parameters()]
    folder = Path(cfg.out_dir)
    if rank == 0:
        open_run(cfg, dataclasses.asdict(model.config), device, start, resumed is None, commit, task.record())

    def all_reduce(value, op):
        """`value` agreed on by all processes."""
        if not ddp:
            return value
        tensor = torch.tensor(float(value), device=device)
        dist.all_reduce(tensor, op)
        return tensor.item()

    def checkpoint(it):
        return dict(model=model.state_dict(), optimizer=optimizer.state_dict(), scaler=scaler.state_dict(), iter=it,
                    best_val_loss=best_val_loss, seconds=seconds_before + time.perf_counter() - started,
                    torch_rng=torch.get_rng_state(), cuda_rng=torch.cuda.get_rng_state(device) if on_cuda else None,
                    model_args=dataclasses.asdict(model.config), task=str(task), data=task.record(), options=dict(vars(cfg)),
                    versions=dict(torch=str(torch.__version__), numpy=np.__version__, commit=commit))

    def get_batch(it, slot):
        """Micro-batch `slot` of iteration `it`: a function of the seed alone, so resuming and DDP have no state to keep."""
        x, y = task.sample(stream(cfg.seed, 'train', it, slot), cfg.batch_size, cfg.block_size)
        return to_device(x, device), to_device(y, device)

    def batches():
        """The micro-batches of this process in their order, each prepared by a thread while the one before it is trained on."""
        order = ((it, slot) for it in itertools.count(start) for slot in slots)
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(get_batch, *next(order))
            while True:
                ready, ahead = ahead, thread.submit(get_batch, *next(order))
                yield ready.result()

    slots = range(rank, cfg.gradient_accumulation_steps, world)
    tokens = cfg.gradient_accumulation_steps * cfg.batch_size * cfg.block_size
    started = clock = time.perf_counter()
    clock_it, waited, prepared = start, 0.0, batches()
    for it in range(start, cfg.max_iters + 1):  # `it` updates are done; the last round only measures
        # the gradient of the global batch
        loss = 0.0
        for slot in slots:
            asked = time.perf_counter()
            x, y = next(prepared)
            waited += time.perf_counter() - asked
            if ddp:
                wrapped.require_backward_grad_sync = slot == slots[-1]
            with cast:
                _, micro_loss = wrapped(x, y)
            loss = loss + micro_loss.detach() / len(slots)
            scaler.scale(micro_loss / len(slots)).backward()
        scaler.unscale_(optimizer)
        if it < cfg.spectral_start:
            for parameter in spectral:
                parameter.grad = None

        # look: log, validate, save
        last, stop = it == cfg.max_iters, 0
        evaluating = it % cfg.eval_interval == 0 or last
        logging = it % cfg.log_interval == 0 or evaluating
        if logging:
            train_loss = all_reduce(loss.item(), dist.ReduceOp.SUM) / world
            if not math.isfinite(train_loss):
                kept = 'holds the last validated iteration' if (folder / 'ckpt.pt').exists() else 'was not saved yet'
                raise FloatingPointError(f'the training loss is {train_loss} at iteration {it}; {folder}/ckpt.pt {kept}; '
                                         'try a lower learning_rate or spectral_lr, or look at the gradient norms in log.jsonl')
            now = time.perf_counter()
            speed = (it - clock_it) / (now - clock) if it > clock_it else 0.0
            lr = cfg.learning_rate * schedule(it, cfg.max_iters, cfg.warmup_iters, cfg.lr_end)
            record = dict(iter=it, train_loss=train_loss, lr=lr, seconds=seconds_before + now - started,
                          iters_per_second=speed, tokens_per_second=speed * tokens, waiting=waited / (now - clock))
            line = f'{it:>6d}/{cfg.max_iters}  train loss {train_loss:.4f}'
            if speed:
                left = duration((cfg.max_iters - it) / speed)
                line += f'  {speed:.1f} it/s, {speed * tokens:,.0f} tokens/s, {left} left'
        if logging and rank == 0:
            record['grad_norm'] = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
            if evaluating:
                with cast:
                    val_loss, val_acc = evaluate(compiled, val_x, val_y, cfg.batch_size)
                record.update(val_loss=val_loss, val_acc=val_acc, **spectral_state(model))
                better = val_loss < best_val_loss
                best_val_loss = val_loss if better else best_val_loss
                line += f'\n{"":>6s} val loss {val_loss:.5f}, accuracy {100 * val_acc:.2f} %{", the best so far" if better else ""}'
                for name in ('best.pt', 'ckpt.pt') if better else ('ckpt.pt',):
                    save(checkpoint(it), folder / name)
            with open(folder / 'log.jsonl', 'a') as log:
                log.write(json.dumps(record) + '\n')
            print(line, flush=True)
        if logging:
            clock, clock_it, waited = time.perf_counter(), it, 0.0
        if logging or not ddp:  # processes agree to stop where they meet anyway
            stop = int(all_reduce(stop_requests[-1] if stop_requests else 0, dist.ReduceOp.MAX))
        if last or stop:
            break

        # the update
        if cfg.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        for group in optimizer.param_groups:
            group['lr'] = group['peak_lr'] * schedule(it, cfg.max_iters, cfg.warmup_iters, cfg.lr_end)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    if stop and rank == 0:
        if not math.isfinite(loss.item()):
            print(f'stopped by {signal.Signals(stop).name} at iteration {it}, where the loss is {loss.item()}: not saved')
        else:
            save(checkpoint(it), folder / 'ckpt.pt')
            print(f'stopped by {signal.Signals(stop).name} at iteration {it}; continue with --init_from=resume', flush=True)
    elif rank == 0:
        print(f'done in {duration(seconds_before + time.perf_counter() - started)}: best val loss {best_val_loss:.5f}\n'
              f'now: python eval.py {folder}    python sample.py {folder}')
    if ddp:
        del wrapped  # first: were its reducer the last to hold the group, it would wait for gloo's threads, and they for the GIL
        gc.collect()
        dist.destroy_process_group()
    if stop:
        raise SystemExit(128 + stop)


if __name__ == '__main__':
    main(SimpleNamespace(**configure(globals(), sys.argv[1:])))
