"""
Train a GPT on a formal language, or on text. The options are the global variables below.

    python train.py config/dyck3_spectral.py                                   # a run, on whatever device there is
    python train.py config/dyck3_spectral.py --seed=1 --out_dir=out/dyck3-1    # the same, with options overridden
    python train.py config/dyck3_spectral.py --init_from=resume                # continue it where it stopped
    torchrun --standalone --nproc_per_node=2 train.py config/dyck3_spectral.py --gradient_accumulation_steps=2
"""

import contextlib
import dataclasses
import gc
import io
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from configurator import choose_device, configure, one_line_errors
from eval import build, copies, evaluate, load_checkpoint, machine, read_log, spectral_state
from model import GPT, GPTConfig, Muon
from tasks import make_task, stream

# the run
out_dir = 'out/run'  # folder of the run: config.json, log.jsonl, ckpt.pt (last), best.pt
init_from = 'scratch'  # or 'resume' (out_dir/ckpt.pt), a checkpoint's path, or 'hf:' and a Llama's folder or hub name
overwrite = False  # True: a new run may replace the one in out_dir
seed = 0  # of the weights and the training data; the validation set is the same for all seeds
device = 'auto'  # 'auto' (cuda, else mps, else cpu), or a torch device such as 'cuda:1'
dtype = 'auto'  # 'float32', 'bfloat16', 'float16'; 'auto' is bfloat16 on cuda and float32 elsewhere
compile = 'auto'  # torch.compile: 'yes', 'no'; 'auto' is yes on cuda and no elsewhere
# the data: fresh batches, no epochs
task = 'dyck'  # a task of tasks.py with what differs from its defaults, such as 'modulo:modulus=11'
block_size = 64  # T, tokens in a training sequence; the model accepts other lengths, too
batch_size = 64  # sequences in a micro-batch
gradient_accumulation_steps = 1  # micro-batches in a global batch; the processes of torchrun share them
# the model: fields of GPTConfig
n_layer = 2  # blocks
n_head = 2  # query heads
n_kv_head = 0  # key/value heads, each shared by n_head / n_kv_head query heads; 0: n_head
n_embd = 64  # C, width of the residual stream
init_std = 0.0  # standard deviation of the first weights; 0: by width, 1/sqrt(inputs); GPT-2 has 0.02
attention = 'rope'  # 'rope', 'spectral', 'bifocal', 'tapa' or 'nope'
rope_base = 10000.0  # theta_i = rope_base^(-2i/hs): fixed for rope, where Omega starts for spectral
rope = 'geometric'  # or 'linear', 'resonance', 'harmonic:period=10', 'yarn:factor=4', ...: see lab/frequencies.py
n_spectral_head = 0  # bifocal: how many of a layer's key/value heads are spectral; 0: half
spectral_shared = False  # one Omega, A, Phi for all spectral heads of a layer
learn = 'frequency,amplitude,phase'  # which of Omega, A and Phi are learned, or 'none'
phase_std = 1e-3  # Phi starts at N(0, phase_std^2)
phase_on = 'query'  # 'query', or 'both' as the paper's formula reads, where Phi cancels
log_scale = 0  # tokens; scores times ln(m+1) / ln(log_scale), so that attention stays sharp in long strings; 0: off
tapa_alpha = 0.1  # exponent of the distance in TAPA's phase
tapa_theta = 0.5  # share of a head's dimensions in TAPA's amplitude; the others make its phase
tapa_phase = 'quadratic'  # 'quadratic' or 'linear'
# the optimiser: linear warm-up, cosine to lr_end
optimizer = 'muon'  # of the blocks' matrices, without decay, and AdamW of the rest (lab/tuning.md); or 'adamw' of all
muon_lr = 0.02  # Muon's peak learning rate; an update is an orthogonal matrix, so the rate is the size of a step
max_iters = 1000  # updates; the schedule ends with them
learning_rate = 2e-3  # AdamW's peak; 0 freezes every parameter except Omega, A and Phi
lr_end = 0.0  # final learning rate, as a share of the peak; at 0 the frequencies come to rest
warmup_iters = 50  # updates of linear warm-up
weight_decay = 0.1  # of matrices only
beta1 = 0.9  # AdamW: decay of the mean of the gradients
beta2 = 0.99  # AdamW: decay of the mean of their squares
grad_clip = 1.0  # greatest norm of the gradient; 0: no limit
spectral_lr = 1e-2  # peak learning rate of Omega, A and Phi
frequency_decay = 0.0  # weight decay of Omega; more than 0 drags every frequency to zero
amplitude_decay = 0.0  # weight decay of A; more than 0 silences the pairs that nothing needs
spectral_start = 0  # Omega, A and Phi do not change before this update
# the log
log_interval = 10  # iterations between log lines
eval_interval = 100  # iterations between validations; each saves ckpt.pt, and best.pt if its loss is the lowest so far
eval_sequences = 512  # validation sequences, the same ones every time


def schedule(it, max_iters, warmup_iters, end):
    """The learning rate of update `it` (from 0) as a share of its peak: linear warm-up, then cosine down to `end`."""
    if it < warmup_iters:
        return (it + 1) / (warmup_iters + 1)
    progress = min(1.0, (it - warmup_iters) / max(1, max_iters - warmup_iters))
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * progress))


def check_options(cfg, world):
    """Refuse what cannot run, before anything is built or replaced."""
    choices = dict(dtype=('auto', 'float32', 'bfloat16', 'float16'), compile=('auto', 'yes', 'no'),
                   optimizer=('muon', 'adamw'))
    counts = 'batch_size gradient_accumulation_steps max_iters eval_sequences log_interval eval_interval'.split()
    for name, value in vars(cfg).items():
        if name in choices and value not in choices[name]:
            raise ValueError(f'{name}={value!r}: must be one of {", ".join(choices[name])}')
        if (name in counts and value < 1) or (name in ('beta1', 'beta2') and value >= 1):
            raise ValueError(f'{name}={value}: must be {"at least" if name in counts else "less than"} 1')
    if cfg.gradient_accumulation_steps % world:
        raise ValueError(f'gradient_accumulation_steps: must be a multiple of {world}, the number of processes')
    folder, sessions = Path(cfg.out_dir), None
    sizes = {path.name: path.stat().st_size for path in folder.glob('*') if path.suffix not in ('.tmp', '.lock')}
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        sessions = json.loads((folder / 'config.json').read_text())['sessions']
    if sizes and not isinstance(sessions, list):
        raise FileExistsError(f'out_dir={cfg.out_dir!r} has files ({min(sizes)}, ...) and no run: choose another one')
    begun = {'ckpt.pt', 'best.pt'} & {*sizes} or sizes.get('log.jsonl')  # a kill at the start leaves an empty log
    if begun and cfg.init_from != 'resume' and not cfg.overwrite:
        go_on = 'continue it with --init_from=resume, ' * ('ckpt.pt' in sizes)
        raise FileExistsError(f'out_dir={cfg.out_dir!r} already holds a run: {go_on}choose another --out_dir, or '
                              'replace it with --overwrite=True')


def lock(folder):
    """Keep other processes out of a run's folder. The system opens it again when this one ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
        fcntl.flock(os.open(folder / 'run.lock', os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f'out_dir={str(folder)!r}: another process is training there') from None
    except (ImportError, OSError) as error:  # Windows, and some network drives
        print(f'{folder} cannot be locked ({error}): do not start a second run there')


def start_model(cfg, task):
    """The model at its start, and the checkpoint to resume (else None)."""
    torch.manual_seed(int(stream(cfg.seed, 'init').integers(2**63)))
    names = [field.name for field in dataclasses.fields(GPTConfig) if hasattr(cfg, field.name)]
    fields = dict(vocab_size=len(task.symbols), **{name: getattr(cfg, name) for name in names})
    if cfg.init_from == 'scratch':
        return GPT(GPTConfig(**fields)), None
    if cfg.init_from != 'resume':
        from lab.surgery import start_from
        return start_from(cfg.init_from, task, fields), None
    path = Path(cfg.out_dir) / 'ckpt.pt'
    checkpoint = load_checkpoint(path)
    for name, new in vars(cfg).items():
        old = checkpoint['options'].get(name, new)
        if new != old and name not in ('init_from', 'overwrite'):
            regroups = name.endswith(('learning_rate', '_lr')) and 0 in (old, new)  # a rate of 0 leaves no state
            if regroups or name in [*names, 'task', 'eval_sequences', 'optimizer']:
                raise ValueError(f'{name}={new!r}: {path} has {old!r} and cannot resume with another; to start a new '
                                 f'run from its weights, give --init_from={path} and another --out_dir')
            print(f'{path}: {name} was {old!r} and is now {new!r}')
    if checkpoint['data'] != task.record():
        raise ValueError(f'{path} cannot resume: the text of {task} is not what it was')
    if checkpoint['iter'] > cfg.max_iters:
        raise ValueError(f'max_iters={cfg.max_iters}: {path} is at iteration {checkpoint["iter"]} already')
    cfg.init_from = checkpoint['options'].get('init_from', 'scratch')  # where the run came from
    return build(checkpoint), checkpoint


def restore(checkpoint, optimizers, scaler):
    """Take over a checkpoint's states, each tensor in the form of its parameter; (iter, best_val_loss, seconds)."""
    try:
        for optimizer, saved in zip(optimizers, checkpoint['optimizers'], strict=True):
            names = ['momentum_buffer'] if isinstance(optimizer, Muon) else ['step', 'exp_avg', 'exp_avg_sq']
            like = [{name: torch.tensor(0.0) if name == 'step' else p for name in names}
                    for group in optimizer.param_groups for p in group['params']]
            state = {i: copies(tensors, like[i]) for i, tensors in saved['state'].items()}
            optimizer.load_state_dict(dict(optimizer.state_dict(), state=state))  # rates and decay are today's options
        scaler.load_state_dict(checkpoint['scaler'] or scaler.state_dict())
        torch.set_rng_state(checkpoint['rng'])
        return checkpoint['iter'], float(checkpoint['best_val_loss']), float(checkpoint['seconds'])
    except Exception as error:
        raise ValueError(f'ckpt.pt has no state to resume from ({type(error).__name__}, {error})') from None


def write(folder, files, line=b'', new_run=False):
    """
    Write {name: bytes} beside the files of these names, put them in their places, and add a line to the log. Whenever a
    process dies, what it leaves can be resumed or started again. A new run removes what was measured of an old one.
    """
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with open(path := folder / f'{name}.tmp', 'wb') as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        last = ('log.jsonl', 'config.json') if (folder / 'ckpt.pt').exists() else ()  # when a run replaces another
        for name in sorted(files, key=lambda name: name in last):
            os.replace(folder / f'{name}.tmp', path := folder / name)
        for old in [folder / 'eval.json', folder / 'eval.png', *folder.glob('eval_*.json')] if new_run else ():
            old.unlink(missing_ok=True)
        if line:
            with open(path := folder / 'log.jsonl', 'ab') as file:
                file.write(line)
    except OSError as error:
        for name in files:
            (folder / f'{name}.tmp').unlink(missing_ok=True)
        raise OSError(f'could not write {path}: {error.strerror}') from None


def opening(cfg, session, resumed, **facts):
    """{name: bytes} of the files that a session begins with. Of the log, lines from where it starts are left out."""
    sessions, log = [session], []
    if resumed:
        sessions = json.loads((Path(cfg.out_dir) / 'config.json').read_text())['sessions'] + sessions
        log = [line for line in read_log(cfg.out_dir) if line['iter'] < session['start']]
        if session['start'] - (log[-1]['iter'] if log else 0) > resumed['options'].get('log_interval', 1):
            print(f'{cfg.out_dir}/log.jsonl has lost the lines before iteration {session["start"]}')
    config = json.dumps(dict(options=vars(cfg), **facts, sessions=sessions), indent=2) + '\n'
    return {'config.json': config.encode(), 'log.jsonl': ''.join(json.dumps(line) + '\n' for line in log).encode()}


def main(cfg):
    """Train as the options `cfg` say. Options that cannot run raise an error before an old run is replaced."""
    # where: one process, or one for each torchrun worker
    rank, local_rank, world = (int(os.environ.get(name, 0)) for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'))
    ddp, world = world > 0, max(1, world)
    if rank > 0:
        sys.stdout = open(os.devnull, 'w')  # only the first process prints
    check_options(cfg, world)
    gpu_each = ddp and torch.cuda.is_available() and cfg.device != 'cpu'
    device = choose_device(f'cuda:{local_rank}' if gpu_each else cfg.device)
    kind, session = device.partition(':')[0], machine(device)
    if device.startswith('cuda:'):
        torch.cuda.set_device(device)
    dtype = ('bfloat16' if kind == 'cuda' else 'float32') if cfg.dtype == 'auto' else cfg.dtype
    cast = torch.autocast(kind, getattr(torch, dtype), enabled=dtype != 'float32')

    # what: the task, the model, its optimiser
    task, folder = make_task(cfg.task), Path(cfg.out_dir)
    model, resumed = start_model(cfg, task)
    validation = task.sample(stream('validation', str(task)), cfg.eval_sequences, cfg.block_size, 'validation')
    validation = [torch.from_numpy(array).to(device) for array in validation]
    facts = dict(model_args=dataclasses.asdict(model.config), task=str(task), data=task.record())
    optimizers = model.to(device).configure_optimizers(
        cfg.learning_rate, cfg.weight_decay, (cfg.beta1, cfg.beta2), cfg.spectral_lr,
        dict(Omega=cfg.frequency_decay, A=cfg.amplitude_decay), cfg.muon_lr if cfg.optimizer == 'muon' else None)
    scaler = torch.amp.GradScaler(kind, enabled=dtype == 'float16')
    start, best_val_loss, seconds_before = restore(resumed, optimizers, scaler) if resumed else (0, math.inf, 0.0)
    groups = sum((optimizer.param_groups for optimizer in optimizers), [])
    if ddp:
        torch.distributed.init_process_group('nccl' if kind == 'cuda' else 'gloo')
    compiled = torch.compile(model) if cfg.compile == 'yes' or (cfg.compile == 'auto' and kind == 'cuda') else model
    wrapped = torch.nn.parallel.DistributedDataParallel(compiled) if ddp else compiled
    print(f'{folder}: task {task}, {len(task.symbols)} symbols, chance {task.chance:.3g}, attainable loss {task.floor}')
    print(f'{cfg.attention} on {device}, {dtype}, compile {"off" if compiled is model else "on"}, processes {world}')
    for group in groups:
        print(f'  {sum(p.numel() for p in group["params"]):>10,} {group["role"]:9s} learning rate {group["peak_lr"]:g}')
    unwritten = opening(cfg, dict(session, argv=sys.argv, start=start), resumed, **facts) if rank == 0 else {}

    def snapshot():
        state = dict(model=model.state_dict(), optimizers=[optimizer.state_dict() for optimizer in optimizers],
                     scaler=scaler.state_dict(), iter=it, best_val_loss=best_val_loss, rng=torch.get_rng_state(),
                     seconds=seconds_before + time.perf_counter() - started, options=vars(cfg), **facts)
        torch.save(state, buffer := io.BytesIO())
        return buffer.getvalue()

    it, caught = start, []  # the first Ctrl-C or SIGTERM asks for a save, the second one kills the process
    def ask_to_stop(number, frame):
        caught.append(number)
        signal.signal(number, signal.SIG_DFL)
        if rank == 0:
            os.write(2, f'\nfinishing iteration {it}, then saving; again to abort\n'.encode())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)

    # the loop: gradient, log and validation, update. `it` updates are done; the last round makes none.
    slots, clock_it = range(rank, cfg.gradient_accumulation_steps, world), start  # slots: this process's micro-batches
    started = clock = time.perf_counter()
    for it in range(start, cfg.max_iters + 1):
        # the gradient of the global batch, whose data depend on the seed, the iteration and the slot alone
        loss = 0.0
        for slot in slots:
            batch = task.sample(stream(cfg.seed, 'train', it, slot), cfg.batch_size, cfg.block_size)
            x, y = (torch.from_numpy(array).to(device) for array in batch)
            if ddp:
                wrapped.require_backward_grad_sync = slot == slots[-1]
            with cast:
                _, micro_loss = wrapped(x, y)
            loss = loss + micro_loss.detach() / len(slots)
            scaler.scale(micro_loss / len(slots)).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        for name, p in model.named_parameters() if it < cfg.spectral_start else ():
            p.grad = None if '.way.' in name else p.grad

        # log, validate, save
        last, rate = it == cfg.max_iters, schedule(it, cfg.max_iters, cfg.warmup_iters, cfg.lr_end)
        evaluating = last or it % cfg.eval_interval == 0
        logging = evaluating or it % cfg.log_interval == 0
        stop = caught[-1] if caught and (logging or not ddp) else 0  # processes agree when they log
        if ddp and logging:
            loss_and_stop = torch.stack([loss / world, torch.tensor(float(stop), device=device)])
            torch.distributed.all_reduce(loss_and_stop)
            loss, stop = loss_and_stop[0], stop or (signal.SIGTERM if loss_and_stop[1] else 0)
        if logging and not math.isfinite(loss):
            raise FloatingPointError(f'the training loss is {loss} at iteration {it}: try a lower learning rate')
        if logging and rank == 0:
            now = time.perf_counter()
            speed = (it - clock_it) / (now - clock)
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()
            record = dict(iter=it, train_loss=loss.item(), lr=cfg.learning_rate * rate, grad_norm=norm,
                          iters_per_second=speed, seconds=seconds_before + now - started)
            left = f'{(cfg.max_iters - it) / speed / 60:.1f}' if speed else '?'
            print(f'{it:>6d}/{cfg.max_iters}  train loss {loss:.4f}  {speed:.1f} it/s  {left} min left', flush=True)
            if evaluating:
                with cast:
                    val_loss, val_acc, _ = evaluate(compiled, *validation, cfg.batch_size)
                record.update(val_loss=val_loss, val_acc=val_acc, **spectral_state(model))
                better, best_val_loss = val_loss <= best_val_loss, min(best_val_loss, val_loss)
                print(f'       val loss {val_loss:.5f}, accuracy {100 * val_acc:.2f} %{", the best so far" * better}')
                unwritten |= dict.fromkeys(['ckpt.pt', 'best.pt'] if better else ['ckpt.pt'], snapshot())
            write(folder, unwritten, json.dumps(record).encode() + b'\n', new_run=it == 0)
            unwritten = {}
            clock, clock_it = time.perf_counter(), it
        if last or stop:
            break

        # the update; where float16 overflowed, no optimiser makes one
        if cfg.grad_clip or scaler.is_enabled():
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip or math.inf)
        for group in groups:
            group['lr'] = group['peak_lr'] * rate
        for optimizer in optimizers if not scaler.is_enabled() or norm.isfinite() else ():
            optimizer.step()
        scaler.update()
        model.zero_grad(set_to_none=True)

    if stop and rank == 0 and math.isfinite(loss):
        write(folder, unwritten | {'ckpt.pt': snapshot()})
    if ddp:
        del wrapped  # first: if it is deleted later, gloo can hang
        gc.collect()
        torch.distributed.destroy_process_group()
    if stop:
        saved = 'continue with --init_from=resume' if math.isfinite(loss) else 'not saved, for the loss is not finite'
        print(f'stopped by {signal.Signals(stop).name} at iteration {it}; {saved}')
        raise SystemExit(128 + stop)
    print(f'done: best val loss {best_val_loss:.5f}\nnow: python eval.py {folder}    python sample.py {folder}')


if __name__ == '__main__':
    with one_line_errors():
        options = SimpleNamespace(**configure(globals(), sys.argv[1:]))  # the globals above, overridden
        if os.environ.get('RANK', '0') == '0':
            lock(Path(options.out_dir))
        main(options)
