"""
Every run behind the results, as plain commands: print them, or run them N at a time.

    python results/trial.py                      # the parts, and how many of their runs are done
    python results/trial.py periods --print      # the commands of a part, to read or to paste
    python results/trial.py headline -j 2        # run what is missing of a part, two runs at a time, a core each
    python results/trial.py headline --match dyck3-rope

A run is a folder results/PART/NAME-SEED. A finished one (it has all its eval*.json) is skipped and a stopped one resumed, so
this can be interrupted and started again. A failed one keeps its output.txt, is counted, and makes the exit status 1.
"""

import argparse
import os
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEEDS = (100, 101, 102)  # they choose learning rates and knobs, and are in no table; rates are tried on the first

# what an arm changes in the config of its attention, on a task whose period is P
ARMS = {
    'nope': '--attention=nope',
    'rope': '',
    'resonance': '--rope_grid=resonance',
    'oracle': '--rope_grid=harmonic --rope_period={P}',
    'spectral': '',
    'bifocal': '',
    'tapa': '',
}
# one more knob for each attention that has one, at two more values
KNOBS = {
    'rope-base100': '--rope_base=100',
    'rope-base1000': '--rope_base=1000',
    'spectral-lr0.003': '--spectral_lr=0.003',
    'spectral-lr0.03': '--spectral_lr=0.03',
    'bifocal-lr0.003': '--spectral_lr=0.003',
    'bifocal-lr0.03': '--spectral_lr=0.03',
    'tapa-alpha0.3': '--tapa_alpha=0.3',
    'tapa-alpha1': '--tapa_alpha=1.0',
}
# on text the frequencies of the slow pairs are far smaller than a step of 0.01; a small phase at the start leaves TAPA a plain attention
TEXT_KNOBS = {name: KNOBS[name] for name in ('rope-base100', 'rope-base1000', 'spectral-lr0.03', 'bifocal-lr0.03', 'tapa-alpha0.3', 'tapa-alpha1')}
TEXT_KNOBS |= {f'{name}-lr{rate:g}': f'--spectral_lr={rate:g}' for name in ('spectral', 'bifocal') for rate in (1e-4, 1e-3)}
TEXT_KNOBS |= {f'{name}-base100': '--rope_base=100' for name in ('spectral', 'bifocal')}
TEXT_KNOBS |= {f'{name}-init0.02': '--init_std=0.02' for name in ('rope', 'tapa')}
PERIOD = {'bio_rotation': 10, 'modulo': 7}  # brackets have none, and no oracle
LONG = ('text', 'passkey')
EVERY_KNOB = KNOBS | TEXT_KNOBS
KNOBS_OF = {'bio_rotation': KNOBS, 'modulo': (*KNOBS, 'tapa-init0.02'), 'dyck3': ('tapa-init0.02',), 'text': TEXT_KNOBS, 'passkey': ('rope-base100', 'tapa-init0.02')}
TASKS = (*PERIOD, 'dyck3', *LONG)
RATES = {'bio_rotation': (5e-4, 1e-3, 2e-3, 4e-3), 'modulo': (2e-3, 4e-3), 'dyck3': (2e-3, 4e-3), 'dyck3-tapa': (1e-3, 2e-3, 4e-3),
         'text': (5e-4, 1e-3, 2e-3, 4e-3), 'text-tapa': (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3), 'passkey': (5e-4, 1e-3, 2e-3),
         'passkey-nope': (5e-4, 1e-3, 2e-3, 4e-3), 'passkey-spectral': (5e-4, 1e-3, 2e-3, 4e-3), 'passkey-tapa': (2.5e-4, 5e-4, 1e-3, 2e-3)}
KNOB_RATE = {'bio_rotation': 1e-3, 'modulo': 4e-3, 'dyck3': 2e-3, 'text': 2e-3, 'passkey': 1e-3, 'passkey-nope': 4e-3, 'passkey-spectral': 2e-3, 'text-tapa': 5e-4}
LONGER_RATES = (1e-4, 4e-4, 1.6e-3)  # of the light fine-tuning; and one more where the best was the last
FURTHER_RATES = {'text-rope-base': 6.4e-3, 'text-rope-pi': 6.4e-3, 'passkey-tapa': 2.5e-5,
                 **{f'passkey-{name}': 6.4e-3 for name in ('nope', 'rope', 'spectral', 'bifocal', 'rope-pi')}}
# rates of the weights and of the frequencies that surgery was tried with, and the trained RoPE that it was tried on
RATES_OF_OMEGA = tuple((1e-3, rate) for rate in (3e-3, 1e-2, 3e-2, 1e-1))
SURGERY_RATES = {
    'bio_rotation': {'full': RATES_OF_OMEGA, 'only': RATES_OF_OMEGA},
    'text': {'full': ((1e-4, 1e-3), (4e-4, 1e-3), (1e-3, 1e-3), (4e-4, 1e-4), (4e-4, 1e-2)), 'only': ((4e-4, 1e-4), (4e-4, 1e-3), (4e-4, 1e-2)),
             'rope': ((1e-4, 1e-3), (4e-4, 1e-3), (1e-3, 1e-3))}}
PATIENTS = {'bio_rotation': f'results/knobs/bio_rotation-rope-0.001-{TUNING_SEEDS[1]}', 'text': f'results/sweep/text-rope-base100-0.002-{TUNING_SEEDS[0]}'}
SHORTER = {'dyck3': ['--max_iters=1500'], 'text': ['--max_iters=500']}  # of the sweep
FASTER = {task: ['--dtype=bfloat16', '--compile=yes'] for task in LONG}  # half the time where a CPU multiplies in bfloat16; measured in float32
# RoPE's extensions to eight times the training length, after training or before a light fine-tuning; the base grows by 400, as TAPA's paper has it
EXTENSIONS = {'base': ['rope_base=40000'], **{name: [f'rope_scaling={name}', 'rope_factor=8'] for name in ('pi', 'ntk', 'yarn')}}


def arm(task, name):
    """The config and the overrides of an arm, and no learning rate."""
    attention = name.split('-')[0]
    config = attention if attention in ('rope', 'spectral', 'bifocal', 'tapa') else 'rope'
    overrides = (ARMS | EVERY_KNOB)[name].format(P=PERIOD.get(task))
    return [f'config/{task}_{config}.py', *overrides.split(), *FASTER.get(task, ())]


def arms(task):
    """The arms of a task: an oracle needs a period, and whole wavelengths are for what has one."""
    return [name for name in ARMS if (name != 'oracle' or task in PERIOD) and (name != 'resonance' or task not in LONG)]


def chosen_rate(task, name):
    """The option of a learning rate for the arms that have no config of their own."""
    rate = CHOSEN.get((task, name))
    return [f'--learning_rate={rate:g}'] if rate else []


def rates(task, name):
    """The learning rates that an arm is tried at: the same for all, and one more where the best was the last."""
    return RATES.get(f'{task}-{name}', RATES[task])


def knob_rate(task, name):
    """The learning rate that the knobs of an arm are tried at."""
    return KNOB_RATE.get(f'{task}-{name.split("-")[0]}', KNOB_RATE[task])


def sweep():
    """Every arm at every rate, then every knob at one rate, where there is a period to find."""
    for task in TASKS:
        for name in arms(task):
            for rate in rates(task, name):
                yield f'{task}-{name}-{rate:g}', [*arm(task, name), f'--learning_rate={rate:g}', *SHORTER.get(task, ())]
        for name in KNOBS_OF.get(task, ()):
            for rate in RATES[task] if name == 'tapa-init0.02' else [knob_rate(task, name)]:  # small first weights bear more
                yield f'{task}-{name}-{rate:g}', [*arm(task, name), f'--learning_rate={rate:g}', *SHORTER.get(task, ())]


def knobs():
    """The knobs again on more seeds, where the sweep's one is not enough: beyond the training length seeds differ most."""
    for name in ('rope', 'spectral', 'bifocal', 'tapa', *KNOBS):
        yield f'bio_rotation-{name}-{KNOB_RATE["bio_rotation"]:g}', [*arm('bio_rotation', name), f'--learning_rate={KNOB_RATE["bio_rotation"]:g}']


def headline():
    """Every arm at the rate that the sweep chose; arms with a config have it there."""
    for task in TASKS:
        for name in arms(task) if task not in LONG else ():
            yield f'{task}-{name}', [*arm(task, name), *chosen_rate(task, name)]


def periods():
    """How far can a frequency travel from where RoPE starts it?"""
    for task, key, values in (('bio_rotation', 'period', (5, 7, 13, 16, 29)), ('modulo', 'modulus', (5, 10, 11, 13, 16, 29))):
        for name in ('rope', 'spectral'):
            for P in values:
                yield f'{task}-{name}-{P}', [f'config/{task}_{name}.py', f'--task={task}:{key}={P}']


def layers():
    """A second layer can count another way."""
    for task, values in (('bio_rotation', (2, 3, 4)), ('modulo', (2,))):
        for name in ('rope', 'spectral'):
            for n in values:
                yield f'{task}-{name}-{n}', [f'config/{task}_{name}.py', f'--n_layer={n}']


def lengths():
    """The same tokens in shorter and in longer strings."""
    for name in ('rope', 'spectral'):
        for T, B in ((32, 128), (128, 32)):
            yield f'bio_rotation-{name}-{T}', [f'config/bio_rotation_{name}.py', f'--block_size={T}', f'--batch_size={B}']


def frequency_rates():
    """The learning rate of the frequencies alone."""
    for task in PERIOD:
        for rate in (1e-3, 1e-2, 3e-2, 1e-1):
            yield f'{task}-spectral-{rate:g}', [f'config/{task}_spectral.py', f'--spectral_lr={rate:g}']


def ablation():
    """What of Omega, A and Phi does it, a period found, and text read beyond the training length? On dyck, frozen frequencies must be RoPE."""
    fixed = {'frequency': '--learn_frequency=False', 'amplitude': '--learn_amplitude=False', 'phase': '--learn_phase=False'}
    for task in ('bio_rotation', 'text'):
        for name, off in (('omega', ('amplitude', 'phase')), ('omega-A', ('phase',)), ('omega-Phi', ('amplitude',)), ('A-Phi', ('frequency',))):
            yield f'{task}-{name}', [*arm(task, 'spectral'), *(fixed[key] for key in off)]
    yield 'bio_rotation-Phi-on-both', ['config/bio_rotation_spectral.py', '--phase_on=both']
    yield 'bio_rotation-shared', ['config/bio_rotation_spectral.py', '--spectral_shared=True']
    yield 'dyck3-frozen', ['config/dyck3_spectral.py', *fixed.values(), '--phase_std=0', '--max_iters=500']
    yield 'dyck3-rope', ['config/dyck3_rope.py', '--max_iters=500']


def start():
    """Where the frequencies start, when they may move, and what weight decay does to them."""
    for task in PERIOD:
        yield f'{task}-rope-linear', [f'config/{task}_rope.py', '--rope_grid=linear']
        for name, option in (('linear', '--rope_grid=linear'), ('late', '--spectral_start=300'), ('frequency-decay', '--frequency_decay=0.1'),
                             ('amplitude-decay', '--amplitude_decay=0.3')):
            yield f'{task}-spectral-{name}', [f'config/{task}_spectral.py', option]


def extrapolation():
    """Can modulo be made to extrapolate? Attention that stays sharp, with fixed, learned and known frequencies."""
    for name in ('rope', 'oracle', 'spectral'):
        yield f'modulo-{name}-log', [*arm('modulo', name), *chosen_rate('modulo', name), '--log_scale=64']
    yield 'modulo-spectral-linear-log', [*arm('modulo', 'spectral'), '--rope_grid=linear', '--log_scale=64']
    yield 'modulo-spectral-decay-log', [*arm('modulo', 'spectral'), '--amplitude_decay=0.3', '--log_scale=64']


def spacing():
    """The control: brackets at regular, random and exponential intervals."""
    for schedule in ('periodic', 'random', 'exponential'):
        for name in ('rope', 'spectral', 'bifocal'):
            yield f'{schedule}-{name}', [f'config/dyck3_{name}.py', f'--task=spacing:schedule={schedule}', '--max_iters=1000']


def controls():
    """What every rotation must solve, and what no sense of position can help."""
    for name in ('rope', 'spectral'):
        yield f'lag-{name}', [f'config/modulo_{name}.py', '--task=lag', '--max_iters=800', '--init_std=0.02', '--learning_rate=2e-3']
    for name in ('nope', 'rope', 'spectral', 'tapa'):
        yield f'sum-{name}', [*arm('modulo', name), '--task=sum', '--max_iters=1000', '--learning_rate=2e-3']


def long():
    """Text and retrieval, trained at one length; RoPE's extensions are measured on the same weights."""
    for task in LONG:
        for name in arms(task):
            yield f'{task}-{name}', [*arm(task, name), *chosen_rate(task, name)]


def longer_arms(task):
    """The arms, and RoPE with each of its extensions."""
    return [*arms(task), *(f'rope-{extension}' for extension in EXTENSIONS)]


def longer_rates(task, name):
    """The rates that the light fine-tuning of an arm is tried at."""
    further = FURTHER_RATES.get(f'{task}-{name}')
    return (*LONGER_RATES, *([further] if further else []))


def longer(task, name, checkpoint, rate):
    """The options of a light fine-tuning at four times the length."""
    attention, _, extension = name.partition('-')
    base = [] if CHOSEN_KNOBS.get((task, attention), '').endswith('base100') else ['--rope_base=10000']  # 100 is the config's, for the tuned RoPE
    return [f'config/{task}_long.py', f'--attention={attention}', f'--init_from={checkpoint}/best.pt', f'--learning_rate={rate:g}', *base, *FASTER.get(task, ()),
            *(f'--{option}' for option in EXTENSIONS.get(extension, ()))]


def tuned_rates():
    """Its learning rates, on the models of the sweep, with the knobs that it chose."""
    for task in LONG:
        for name in longer_arms(task):
            attention = name.partition('-')[0]
            checkpoint = f'results/sweep/{task}-{CHOSEN_KNOBS.get((task, attention), attention)}-{knob_rate(task, attention):g}-{{seed}}'
            for rate in longer_rates(task, name):
                yield f'{task}-{name}-{rate:g}', longer(task, name, checkpoint, rate)


def tuned():
    """The models of `long` after it."""
    for task in LONG:
        for name in longer_arms(task):
            checkpoint = f'results/long/{task}-{name.partition("-")[0]}-{{seed}}'
            yield f'{task}-{name}', longer(task, name, checkpoint, LONGER.get((task, name), LONGER_RATES[1]))


def bases():
    """The trained RoPE models that `surgery` operates on: weights are not kept in the repository."""
    for task in PERIOD:
        yield f'{task}-rope', arm(task, 'rope')


def operations(task, folder):
    """(name, options) of the three ways to go on from a trained RoPE: all weights, its frequencies alone, or with RoPE as it is."""
    start = [f'config/surgery_{task}.py', f'--init_from={folder}/best.pt', *FASTER.get(task, ())]
    return [('full', start), ('only', [*start, '--train_only=spectral']), ('rope', [*start, '--attention=rope'])]


def surgery_rates():
    """The rates of the frequencies, and on text of the weights, one at a time, on a RoPE of the tuning seeds."""
    for task, patient in PATIENTS.items():
        for name, options in operations(task, patient):
            for rate, spectral_rate in SURGERY_RATES[task].get(name, ()):
                yield f'{task}-{name}-{rate:g}-{spectral_rate:g}', [*options, f'--learning_rate={rate:g}', f'--spectral_lr={spectral_rate:g}']


def surgery():
    """Surgical Integration: does a trained RoPE recover what Spectral learns from scratch? On text, what does it gain?"""
    for task in (*PERIOD, 'text'):
        for name, options in operations(task, f'results/{"long" if task == "text" else "bases"}/{task}-rope-{{seed}}'):
            rates = OPERATED.get((task, name))
            yield f'{task}-{name}', [*options, *([f'--learning_rate={rates[0]:g}', f'--spectral_lr={rates[1]:g}'] if rates else [])]


def english():
    """The same models on tinyshakespeare, which the README says where to fetch: does prose say what code does?"""
    for name in arms('text'):
        yield f'text-{name}', [*arm('text', name), *chosen_rate('text', name), '--task=text:path=out/tinyshakespeare.txt']


def base():
    """RoPE and Spectral from each other's base: which of the two does it? And RoPE with all wavelengths within the training length, and far within."""
    for name, value in (('rope', 10000), ('spectral', 100), ('rope', 40), ('rope', 10)):
        yield f'text-{name}-base{value}', [*arm('text', name), f'--rope_base={value}']


def budget():
    """Four times the updates on text: do the arms that learn slowly come up?"""
    for name in ('nope', 'rope', 'tapa'):
        yield f'text-{name}', [*arm('text', name), *chosen_rate('text', name), '--max_iters=4000']
    yield 'text-rope-base40', [*arm('text', 'rope'), '--rope_base=40', '--max_iters=4000']


def phase():
    """TAPA's own choices, on text: the phase, the exponent of the distance, the share of the amplitude."""
    for name, option in (('linear', '--tapa_phase=linear'), *((f'alpha{a:g}', f'--tapa_alpha={a:g}') for a in (0.03, 0.3, 1.0)),
                         *((f'theta{t:g}', f'--tapa_theta={t:g}') for t in (0.25, 0.75))):
        yield f'text-tapa-{name}', [*arm('text', 'tapa'), option]


CHOSEN = {('bio_rotation', 'nope'): 4e-3, ('bio_rotation', 'resonance'): 4e-3, ('bio_rotation', 'oracle'): 4e-3,
          ('modulo', 'nope'): 4e-3, ('modulo', 'resonance'): 4e-3, ('modulo', 'oracle'): 2e-3,
          ('dyck3', 'nope'): 4e-3, ('dyck3', 'resonance'): 4e-3, ('text', 'nope'): 2e-3, ('passkey', 'nope'): 4e-3}  # learning rates of the arms that have no config
CHOSEN_KNOBS = {('text', 'rope'): 'rope-base100', ('text', 'bifocal'): 'bifocal-base100', ('text', 'tapa'): 'tapa-init0.02',
                ('passkey', 'rope'): 'rope-base100', ('passkey', 'tapa'): 'tapa-init0.02'}  # as their configs have
LONGER = {('text', 'nope'): 1e-4, ('text', 'tapa'): 1e-4, ('text', 'rope-base'): 1.6e-3, ('text', 'rope-pi'): 1.6e-3,
          **{('passkey', name): 1.6e-3 for name in ('nope', 'rope', 'spectral', 'bifocal')}, ('passkey', 'rope-pi'): 6.4e-3}  # the rates of the light fine-tuning that were chosen, where it is not the middle one
OPERATED = {('bio_rotation', 'full'): (1e-3, 3e-2), ('text', 'full'): (1e-3, 1e-3), ('text', 'rope'): (1e-3, 1e-3)}  # those of SURGERY_RATES that were chosen, where the config has others
PARTS = {part.__name__: part for part in (sweep, knobs, headline, periods, layers, lengths, frequency_rates, ablation, start,
                                         extrapolation, spacing, controls, long, tuned_rates, tuned, english, base, phase, budget, bases, surgery_rates, surgery)}
TUNING = {'sweep': TUNING_SEEDS[:1], 'knobs': TUNING_SEEDS[1:], 'tuned_rates': TUNING_SEEDS[:1], 'surgery_rates': TUNING_SEEDS[:1]}  # the parts that choose, on validation data


def commands(part, n_seeds=len(SEEDS)):
    """(folder, options of train.py) of each run of a part, with the first n_seeds seeds."""
    for seed in TUNING.get(part, SEEDS[:n_seeds]):  # seed by seed, so that what is there early is a comparison
        for name, options in PARTS[part]():
            folder = f'results/{part}/{name}-{seed}'
            yield folder, [*(option.format(seed=seed) for option in options), f'--seed={seed}', f'--out_dir={folder}']


def evaluations(part, folder):
    """{file of results: options of eval.py} of a run."""
    task = folder.split('/')[-1].split('-')[0]
    if part in TUNING:
        return {'eval_validation.json': ['--split=validation', *(['--multiples', '1', '--n=16'] if task == 'text' else [])]}
    fewer = ['--n=32'] if task == 'text' else []  # of 64
    shorter = {'text': ['0.03125', '0.0625', '0.125'], 'passkey': []}.get(task)  # the lengths of `long`
    measured = {'eval.json': [*fewer, *(['--multiples', *shorter, '0.25', '0.5', '1', '2'] if part == 'tuned' else [])]}
    if part == 'long' and '-rope-' in folder:
        measured |= {f'{"_".join(["eval", *options])}.json': [*fewer, '--override', *options] for options in EXTENSIONS.values()}
    return measured


def finished(part, folder):
    return all((ROOT / folder / name).exists() for name in evaluations(part, folder))


def run(part, folder, options, environment):
    """Train and evaluate; True if both went well."""
    path = ROOT / folder
    path.mkdir(parents=True, exist_ok=True)
    start = ['--init_from=resume'] if (path / 'ckpt.pt').exists() else []
    with open(path / 'output.txt', 'w') as output:
        measuring = [('eval.py', [folder, *arguments]) for arguments in evaluations(part, folder).values()]
        for script, arguments in (('train.py', options + start), *measuring):
            done = subprocess.run([sys.executable, script, *arguments], cwd=ROOT, env=environment, stdout=output, stderr=output)
            if done.returncode:
                return False
    (path / 'output.txt').unlink()
    return True


def run_all(part, todo, jobs):
    """The number of runs that failed. Ctrl-C reaches the runs too: they save and stop, and no new one starts."""
    environment = {'OMP_NUM_THREADS': str(max(1, (os.cpu_count() or 1) // jobs)), **os.environ}  # unless the user has said
    lock, stopping, started, counts = threading.Lock(), threading.Event(), time.time(), {True: 0, False: 0}

    def one(folder, options):
        if stopping.is_set():
            return
        begun = time.time()
        ok = run(part, folder, options, environment)
        with lock:
            if stopping.is_set():
                return
            counts[ok] += 1
            done = sum(counts.values())
            left = (time.time() - started) / done * (len(todo) - done) / 60
            print(f'{done:>4d}/{len(todo)}  {time.time() - begun:4.0f} s  {folder}' + ('' if ok else f'  FAILED: see {folder}/output.txt')
                  + f'   ({counts[False]} failed, {left:.0f} min left)', flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, *command) for command in todo]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            stopping.set()
            print('stopping: the runs under way save where they are', flush=True)
    if stopping.is_set():
        sys.exit(130)
    return counts[False]


def main(arguments=None):
    """Run or print the parts that the command line `arguments` (default: sys.argv) name; the exit status is 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parts', nargs='*', metavar='PART', help=', '.join(PARTS))
    parser.add_argument('-j', '--jobs', type=int, default=2, help='runs at a time (default: %(default)s)')
    parser.add_argument('--match', default='', help='only runs whose folder contains this')
    parser.add_argument('--seeds', type=int, default=len(SEEDS), help='only the first so many seeds (default: %(default)s)')
    parser.add_argument('--print', action='store_true', help='print the commands and run nothing')
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f'no part {", ".join(sorted(unknown))}: there are {", ".join(PARTS)}')
    if options.jobs < 1:
        parser.error('--jobs must be at least 1')
    failed = 0
    for part in options.parts or PARTS:
        chosen = [(folder, command) for folder, command in commands(part, options.seeds) if options.match in folder]
        todo = [(folder, command) for folder, command in chosen if not finished(part, folder)]
        if options.print:
            for folder, command in chosen:
                measuring = [shlex.join(['python', 'eval.py', folder, *arguments]) for arguments in evaluations(part, folder).values()]
                print(shlex.join(['python', 'train.py', *command]), *measuring, sep=' && ')
        else:
            print(f'{part}: {len(chosen) - len(todo)} of {len(chosen)} runs done', flush=True)
            if options.parts:
                failed += run_all(part, todo, options.jobs)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
