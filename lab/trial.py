"""
Every run behind the results, as plain commands: print them, or run them N at a time.

    python -m lab.trial                          # the studies, and how many of their runs are done
    python -m lab.trial periods --print          # the commands of a study, to read or to paste
    python -m lab.trial headline -j 2            # run what is missing of a study, two runs at a time, a core each
    python -m lab.trial headline --match dyck3-rope

A run is a folder out/trial/STUDY/NAME-SEED. It is finished, and skipped, if lab/results/STUDY.csv has its row or the
folder has all its evaluations; a stopped one is resumed. So a study can be interrupted and started again. What a
failed run said stays in NAME-SEED.txt, and the exit status is 1. `python -m lab.results` gathers finished runs.
"""

import argparse
import functools
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configurator import one_line_errors
from lab import results
from lab.compare import log_loss, solved
from lab.muon import VARIANTS

ROOT = Path(__file__).resolve().parent.parent
RUNS = 'out/trial'  # from ROOT
N_SEEDS = 5  # seeds 0 to 4
SEEDS_OF = {  # other studies
    'settled': 20, 'further': 20, 'other_optimizer': 10,
    'crystal': 10, 'crystal_none': 10, 'crystal_noise': 10, 'crystal_parts': 10,
}
# by a word of a run's name: arms of `settled` that no claim is about, and a task
FEWER_SEEDS = {'settled': {'tapa': 10, 'resonance': 10, 'oracle': 10}, 'long_muon': {'passkey': 3}}
TUNING_SEEDS = (100, 101, 102)  # they choose learning rates and knobs; rates are tried on the first

# what an arm changes in the config of its attention, on a task whose period is P
ARMS = {
    'nope': '--attention=nope',
    'rope': '',
    'resonance': '--rope=resonance',
    'oracle': '--rope=harmonic:period={P}',
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
# on text the frequencies of the slow pairs are far smaller than a step of 0.01;
# a small phase at the start leaves TAPA a plain attention
TEXT_KNOBS = {name: KNOBS[name] for name in ('rope-base100', 'rope-base1000', 'spectral-lr0.03', 'bifocal-lr0.03',
                                             'tapa-alpha0.3', 'tapa-alpha1')}
for name in ('spectral', 'bifocal'):
    TEXT_KNOBS |= {f'{name}-lr{rate:g}': f'--spectral_lr={rate:g}' for rate in (1e-4, 1e-3)}
TEXT_KNOBS |= {f'{name}-base100': '--rope_base=100' for name in ('spectral', 'bifocal')}
TEXT_KNOBS |= {f'{name}-init0.02': '--init_std=0.02' for name in ('rope', 'tapa')}
EVERY_KNOB = KNOBS | TEXT_KNOBS
PERIOD = {'bio_rotation': 10, 'modulo': 7}  # brackets have none, and no oracle
LONG = ('text', 'passkey')
TASKS = (*PERIOD, 'dyck3', *LONG)
KNOBS_OF = {'bio_rotation': KNOBS, 'modulo': (*KNOBS, 'tapa-init0.02'), 'dyck3': ('tapa-init0.02',), 'text': TEXT_KNOBS,
            'passkey': ('rope-base100', 'tapa-init0.02')}
# learning rates that are tried, of a task or of one of its arms: one more where the best was the last
RATES = {'bio_rotation': (5e-4, 1e-3, 2e-3, 4e-3), 'modulo': (2e-3, 4e-3), 'dyck3': (2e-3, 4e-3),
         'dyck3-tapa': (1e-3, 2e-3, 4e-3), 'text': (5e-4, 1e-3, 2e-3, 4e-3),
         'text-tapa': (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3),
         'passkey': (5e-4, 1e-3, 2e-3), 'passkey-nope': (5e-4, 1e-3, 2e-3, 4e-3),
         'passkey-spectral': (5e-4, 1e-3, 2e-3, 4e-3), 'passkey-tapa': (2.5e-4, 5e-4, 1e-3, 2e-3)}
KNOB_RATE = {'bio_rotation': 1e-3, 'modulo': 4e-3, 'dyck3': 2e-3, 'text': 2e-3, 'passkey': 1e-3, 'passkey-nope': 4e-3,
             'passkey-spectral': 2e-3, 'text-tapa': 5e-4}
# the knobs that were tried at more rates than one, by task; small first weights bear more
KNOB_RATES = {'tapa-init0.02': RATES, 'tapa-alpha0.3': {'text': (5e-4, 1e-3)}, 'tapa-alpha1': {'text': (5e-4, 1e-3)}}
LONGER_RATES = (1e-4, 4e-4, 1.6e-3)  # of the light fine-tuning; and one more where the best was the last
FURTHER_RATES = {'text-rope-base': 6.4e-3, 'text-rope-pi': 6.4e-3, 'passkey-tapa': 2.5e-5,
                 **{f'passkey-{name}': 6.4e-3 for name in ('nope', 'rope', 'spectral', 'bifocal', 'rope-pi')}}
SWEPT = ('nope', 'rope', 'rope-base1000', 'rope-base100', 'spectral', 'bifocal', 'tapa')  # RoPE has three bases
# the same number of rates for both optimisers; and further ones where the best of the first seed was the last
OPTIMIZER_RATES = {'bio_rotation': {'adamw': (1e-3, 2e-3, 4e-3), 'muon': (5e-3, 1e-2, 2e-2)},
                   'modulo': {'adamw': (2e-3, 4e-3, 8e-3), 'muon': (5e-3, 1e-2, 2e-2)},
                   'dyck3': {'adamw': (2e-3, 4e-3, 8e-3), 'muon': (5e-3, 1e-2, 2e-2)}}
FURTHER_OPTIMIZER_RATES = {
    **{('dyck3', name, 'muon'): (4e-2,) for name in SWEPT if name != 'tapa'},
    **{('dyck3', name, 'adamw'): (1.6e-2,) for name in ('nope', 'rope', 'bifocal')},
    **{('bio_rotation', name, 'adamw'): (8e-3,) for name in ('nope', 'rope')},
    **{('bio_rotation', name, 'adamw'): (8e-3, 1.6e-2) for name in ('rope-base1000', 'bifocal')},
    ('bio_rotation', 'spectral', 'adamw'): (8e-3,),
    **{('bio_rotation', name, 'muon'): (4e-2,) for name in ('nope', 'rope', 'tapa')},
    ('bio_rotation', 'rope-base1000', 'muon'): (4e-2,), ('bio_rotation', 'bifocal', 'muon'): (2.5e-3,),
    **{('modulo', name, 'adamw'): (1.6e-2,) for name in ('nope', 'rope', 'spectral')},
    **{('modulo', name, 'muon'): (4e-2,) for name in ('spectral', 'bifocal', 'tapa')},
    ('dyck3', 'tapa', 'adamw'): (1e-3,)}
# all rates are tried on the first tuning seeds, so many of them (default: 1); of the arms of claims, and of all arms of
# the synthetic tasks, the best two of each optimiser go on to all three
SEEDS_OF_ALL_RATES = {'bio_rotation': 2, 'dyck3': 2}
ON_ALL_TUNING_SEEDS = ('bio_rotation-', 'dyck3-', 'modulo-', 'text-rope', 'text-tapa')
# Muon on text and passkey, where the sweep had AdamW alone; and one rate more where the best was the last
MUON_ARMS = ('nope', 'rope', 'spectral', 'tapa')
MUON_RATES = (2.5e-3, 5e-3, 1e-2, 2e-2)
FURTHER_MUON_RATES = {('text', 'rope'): (4e-2,), ('text', 'spectral'): (4e-2,), ('passkey', 'rope'): (1.25e-3, 6.25e-4),
                      ('passkey', 'spectral'): (1.25e-3,), ('passkey', 'tapa'): (4e-2,)}
# rates of the weights and of the frequencies that surgery was tried with, and the trained RoPE that it was tried on
RATES_OF_OMEGA = (3e-3, 1e-2, 3e-2, 1e-1)
SURGERY_RATES = {
    'bio_rotation': {'full': [(1e-3, rate) for rate in RATES_OF_OMEGA], 'only': [(0, rate) for rate in RATES_OF_OMEGA]},
    'text': {'full': [(1e-4, 1e-3), (4e-4, 1e-3), (1e-3, 1e-3), (4e-4, 1e-4), (4e-4, 1e-2)],
             'only': [(0, 1e-4), (0, 1e-3), (0, 1e-2)], 'rope': [(1e-4, 1e-3), (4e-4, 1e-3), (1e-3, 1e-3)]}}
PATIENTS = {'bio_rotation': f'{RUNS}/knobs/bio_rotation-rope-0.001-{TUNING_SEEDS[1]}',
            'text': f'{RUNS}/sweep/text-rope-base100-0.002-{TUNING_SEEDS[0]}'}
# updates that settle a crystal, with its frequencies frozen; and the options of modulo before that
SETTLING = {'bio_rotation': 200, 'modulo': 1000}
SHARP = ['--log_scale=64', '--optimizer=muon', '--muon_lr=0.01', '--learning_rate=0.004']
SHORTER = {'dyck3': ['--max_iters=1500'], 'text': ['--max_iters=500']}  # of the sweep
# half the time where a CPU multiplies in bfloat16; measured in float32
FASTER = {task: ['--dtype=bfloat16', '--compile=yes'] for task in LONG}
# RoPE's extensions to eight times the training length, after training or before a light fine-tuning; the base grows by
# 400, as TAPA's paper has it
EXTENSIONS = {'base': 'rope_base=40000', **{name: f'rope={name}:factor=8' for name in ('pi', 'ntk', 'yarn')}}

# ----------------------------------------------------------------------------------------------------------------------
# What was chosen; a test holds it to the rules of lab/report_tuning.py

# learning rates of the arms that have no config
CHOSEN = {('bio_rotation', 'nope'): 4e-3, ('bio_rotation', 'resonance'): 4e-3, ('bio_rotation', 'oracle'): 4e-3,
          ('modulo', 'nope'): 4e-3, ('modulo', 'resonance'): 4e-3, ('modulo', 'oracle'): 2e-3,
          ('dyck3', 'nope'): 4e-3, ('dyck3', 'resonance'): 4e-3, ('text', 'nope'): 2e-3, ('passkey', 'nope'): 4e-3}
# knobs, as the configs have them
CHOSEN_KNOBS = {('text', 'rope'): 'rope-base100', ('text', 'bifocal'): 'bifocal-base100',
                ('text', 'tapa'): 'tapa-init0.02', ('passkey', 'rope'): 'rope-base100',
                ('passkey', 'tapa'): 'tapa-init0.02'}
# rates of the light fine-tuning, where it is not the middle one
LONGER = {('text', 'nope'): 1e-4, ('text', 'tapa'): 1e-4, ('text', 'rope-base'): 1.6e-3, ('text', 'rope-pi'): 1.6e-3,
          **{('passkey', name): 1.6e-3 for name in ('nope', 'rope', 'spectral', 'bifocal')},
          ('passkey', 'rope-pi'): 6.4e-3}
# RoPE of the claims, where it is not that at base 10000: the best of three bases on the tuning seeds takes its place if
# it also does better in `settled`, so that the baseline has the benefit; resonance and the oracle have its rates
BASELINE = {'bio_rotation': 'rope-base1000'}
# {task: {arm: {optimiser: its best rate}}}, the better optimiser first
CHOSEN_OPTIMIZER = {
    'bio_rotation': {
        'nope': {'muon': 0.02, 'adamw': 0.008}, 'rope': {'adamw': 0.004, 'muon': 0.02},
        'rope-base1000': {'muon': 0.005, 'adamw': 0.008}, 'spectral': {'adamw': 0.008, 'muon': 0.01},
        'bifocal': {'adamw': 0.008, 'muon': 0.005}, 'tapa': {'muon': 0.04, 'adamw': 0.002},
        'resonance': {'muon': 0.005, 'adamw': 0.008}, 'oracle': {'muon': 0.005, 'adamw': 0.008}},
    'dyck3': {
        'nope': {'muon': 0.04, 'adamw': 0.008}, 'rope': {'muon': 0.01, 'adamw': 0.004},
        'rope-base100': {'muon': 0.01, 'adamw': 0.004},
        'spectral': {'muon': 0.01, 'adamw': 0.004}, 'bifocal': {'muon': 0.01, 'adamw': 0.002},
        'tapa': {'muon': 0.01, 'adamw': 0.004}, 'resonance': {'muon': 0.01, 'adamw': 0.004}},
    'modulo': {
        'nope': {'adamw': 0.008, 'muon': 0.02}, 'rope': {'adamw': 0.008, 'muon': 0.01},
        'rope-base100': {'adamw': 0.004, 'muon': 0.01},
        'spectral': {'muon': 0.01, 'adamw': 0.008}, 'bifocal': {'muon': 0.02, 'adamw': 0.004},
        'tapa': {'adamw': 0.004, 'muon': 0.01}, 'resonance': {'adamw': 0.008, 'muon': 0.01},
        'oracle': {'adamw': 0.008, 'muon': 0.01}}}
# {(task, arm): Muon's rate} on text and passkey
CHOSEN_MUON = {('text', 'nope'): 1e-2, ('text', 'rope'): 2e-2, ('text', 'spectral'): 2e-2,
               ('text', 'tapa'): 5e-3, ('passkey', 'nope'): 5e-3, ('passkey', 'rope'): 1.25e-3,
               ('passkey', 'spectral'): 2.5e-3, ('passkey', 'tapa'): 2e-2}
# learning rates in the configs when the first trial was run; Bifocal's rates of the frequencies are still there
FIRST_RATE = {'dyck3_rope': 4e-3, 'dyck3_spectral': 4e-3, 'dyck3_bifocal': 4e-3, 'dyck3_tapa': 2e-3,
              'bio_rotation_rope': 1e-3, 'bio_rotation_spectral': 1e-3, 'bio_rotation_bifocal': 1e-3,
              'bio_rotation_tapa': 2e-3, 'modulo_rope': 4e-3, 'modulo_spectral': 2e-3, 'modulo_bifocal': 2e-3,
              'modulo_tapa': 4e-3, 'text_rope': 2e-3, 'text_spectral': 2e-3, 'text_tapa': 5e-4,
              'passkey_rope': 1e-3, 'passkey_spectral': 2e-3, 'passkey_tapa': 1e-3}
# rates of the weights and of the frequencies in surgery, where the config has others
SURGERY_RATE = {('bio_rotation', 'full'): (1e-3, 3e-2), ('text', 'full'): (1e-3, 1e-3), ('text', 'rope'): (1e-3, 1e-3)}


# ----------------------------------------------------------------------------------------------------------------------
# Parts of commands


def arm(task, name):
    """The config and the overrides of an arm, and no learning rate."""
    attention = name.split('-')[0]
    config = attention if attention in ('rope', 'spectral', 'bifocal', 'tapa') else 'rope'
    overrides = (ARMS | EVERY_KNOB)[name].format(P=PERIOD.get(task))
    return [f'config/{task}_{config}.py', *overrides.split(), *FASTER.get(task, ())]


def tuning_arm(task, name, rate):
    """An arm as the tuning runs have it: every knob is stated, for the configs have those that were chosen later."""
    config, *overrides = arm(task, name)
    init_std = 0.02 if task == 'bio_rotation' else 0
    knobs = ['--rope_base=10000', '--spectral_lr=0.01', '--tapa_alpha=0.1', f'--init_std={init_std}']
    changed = {word.partition('=')[0] for word in overrides}
    knobs = [word for word in knobs if word.partition('=')[0] not in changed]
    return [config, *knobs, *overrides, f'--learning_rate={rate:g}']


def with_optimizer(task, name, optimizer, rate):
    """An arm with an optimiser at a rate; AdamW's rate beside Muon is the same everywhere."""
    config, *overrides = arm(task, name)
    base = [] if any('rope_base' in word for word in overrides) else ['--rope_base=10000']
    rates = (rate, 4e-3) if optimizer == 'muon' else (0.02, rate)  # without Muon its rate is of no account
    rates = [f'--muon_lr={rates[0]:g}', f'--learning_rate={rates[1]:g}']
    return [config, *base, *overrides, f'--optimizer={optimizer}', *rates]


def with_muon(task, name, rate):
    """An arm of text or passkey with Muon at a rate, its knobs as the config has them; in float32, not FASTER."""
    plain = [word for word in arm(task, name) if word not in FASTER[task]]
    return [*plain, '--optimizer=muon', f'--muon_lr={rate:g}', '--learning_rate=0.004']


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


def muon_rates(task, name):
    """Muon's rates on text and passkey."""
    return (*MUON_RATES, *FURTHER_MUON_RATES.get((task, name), ()))


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
    # 100 is the config's, for the tuned RoPE
    base = [] if CHOSEN_KNOBS.get((task, attention), '').endswith('base100') else ['--rope_base=10000']
    return [f'config/{task}_long.py', f'--attention={attention}', f'--init_from={checkpoint}/best.pt',
            f'--learning_rate={rate:g}', *base, *FASTER.get(task, ()),
            *([f'--{EXTENSIONS[extension]}'] if extension else [])]


def ways_on(task, folder):
    """{name: options} of three ways to go on from a trained RoPE: all weights, its frequencies alone, or as it is."""
    start = [f'config/surgery_{task}.py', f'--init_from={folder}/best.pt', *FASTER.get(task, ())]
    return {'full': start, 'only': [*start, '--learning_rate=0'], 'rope': [*start, '--attention=rope']}


# ----------------------------------------------------------------------------------------------------------------------
# The studies: each yields (name, options of train.py) of its runs


def sweep():
    """Every arm at every rate, then every knob at one rate, where there is a period to find."""
    for task in TASKS:
        for name in arms(task):
            for rate in rates(task, name):
                yield f'{task}-{name}-{rate:g}', [*tuning_arm(task, name, rate), *SHORTER.get(task, ())]
        for name in KNOBS_OF.get(task, ()):
            for rate in KNOB_RATES.get(name, {}).get(task, [knob_rate(task, name)]):
                yield f'{task}-{name}-{rate:g}', [*tuning_arm(task, name, rate), *SHORTER.get(task, ())]


def knobs():
    """The knobs again on more seeds, where one is not enough: beyond the training length seeds differ most."""
    rate = KNOB_RATE['bio_rotation']
    for name in ('rope', 'spectral', 'bifocal', 'tapa', *KNOBS):
        yield f'bio_rotation-{name}-{rate:g}', tuning_arm('bio_rotation', name, rate)


def merit(rows):
    """By which rates are chosen, larger is better: how many seeds are solved, then the mean log10 loss."""
    return sum(map(solved, rows)), -statistics.mean(map(log_loss, rows))


def candidates(name, seeds, part='optimizers'):
    """{rate: rows on `seeds`} of NAME-RATE in a study that chooses rates, of those that have all the rows."""
    rows = {}
    for row in results.study(part):
        start, _, rate = row['name'].rpartition('-')
        if start == name and row['seed'] in seeds:
            rows.setdefault(float(rate), []).append(row)
    return {rate: found for rate, found in rows.items() if len(found) == len(seeds)}


def goes_on(name, seed, part='optimizers'):
    """Is a run NAME-RATE tried on this tuning seed? On the later ones, only the best two rates are."""
    start, _, rate = name.rpartition('-')
    first = TUNING_SEEDS[:SEEDS_OF_ALL_RATES.get(name.split('-')[0], 1)]
    tried = candidates(start, first, part)
    best_two = sorted(tried, key=lambda rate: merit(tried[rate]))[-2:]
    return seed in first or start.startswith(ON_ALL_TUNING_SEEDS) and float(rate) in best_two


def optimizers():
    """AdamW and Muon for every arm at as many rates; with Muon, AdamW's rate for the rest is the same everywhere."""
    for task in ('dyck3', 'bio_rotation', 'modulo'):
        shorter = ['--max_iters=1000'] if task == 'dyck3' else []
        for name in SWEPT:
            for optimizer, rates in OPTIMIZER_RATES[task].items():
                for rate in (*rates, *FURTHER_OPTIMIZER_RATES.get((task, name, optimizer), ())):
                    options = [*with_optimizer(task, name, optimizer, rate), *shorter]
                    yield f'{task}-{name}-{optimizer}-{rate:g}', options


def muon():
    """Muon's own choices (lab/muon.py), at a rate of 0.01; `rest` has twice AdamW's rate for the other parameters."""
    for task, name in (('modulo', 'rope'), ('dyck3', 'spectral')):
        for variant in (*VARIANTS, 'rest'):
            rest = ['--learning_rate=0.008'] * (variant == 'rest')
            yield f'{task}-{name}-{variant}', [*with_optimizer(task, name, 'muon', 1e-2), *rest]


def settled():
    """Every arm with the better of both optimisers; `other_optimizer` has the other one."""
    for task, arms_of_task in CHOSEN_OPTIMIZER.items():
        for name, rates in arms_of_task.items():
            yield f'{task}-{name}', with_optimizer(task, name, *list(rates.items())[0])


def further():
    """One rate further on bio_rotation: do its verdicts depend on where the sweep ended?"""
    yield 'bio_rotation-rope', with_optimizer('bio_rotation', 'rope-base1000', 'muon', 2.5e-3)
    yield 'bio_rotation-spectral', with_optimizer('bio_rotation', 'spectral', 'adamw', 1.6e-2)


def other_optimizer():
    """The arms of the claims with the optimiser that was not chosen."""
    for task, arms_of_task in CHOSEN_OPTIMIZER.items():
        for name in (BASELINE.get(task, 'rope'), 'spectral', 'bifocal'):
            yield f'{task}-{name}', with_optimizer(task, name, *list(arms_of_task[name].items())[1])


def headline():
    """Every arm at the rate that the sweep chose; arms with a config have it there."""
    for task in TASKS:
        for name in arms(task) if task not in LONG else ():
            yield f'{task}-{name}', [*arm(task, name), *chosen_rate(task, name)]


def periods():
    """How far can a frequency travel from where RoPE starts it?"""
    for task, key, values in (('bio_rotation', 'period', (5, 7, 13, 16, 29)),
                              ('modulo', 'modulus', (5, 10, 11, 13, 16, 29))):
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
            options = [f'--block_size={T}', f'--batch_size={B}']
            yield f'bio_rotation-{name}-{T}', [f'config/bio_rotation_{name}.py', *options]


def frequency_rates():
    """The learning rate of the frequencies alone."""
    for task in PERIOD:
        for rate in (1e-3, 1e-2, 3e-2, 1e-1):
            yield f'{task}-spectral-{rate:g}', [f'config/{task}_spectral.py', f'--spectral_lr={rate:g}']


def ablation():
    """
    What of Omega, A and Phi does it, a period found, and text read beyond the training length?

    On dyck, frozen frequencies must be RoPE.
    """
    parts = {'omega': 'frequency', 'omega-A': 'frequency,amplitude', 'omega-Phi': 'frequency,phase',
             'A-Phi': 'amplitude,phase'}
    for task in ('bio_rotation', 'text'):
        for name, learn in parts.items():
            yield f'{task}-{name}', [*arm(task, 'spectral'), f'--learn={learn}']
    yield 'bio_rotation-Phi-on-both', ['config/bio_rotation_spectral.py', '--phase_on=both']
    yield 'bio_rotation-shared', ['config/bio_rotation_spectral.py', '--spectral_shared=True']
    yield 'dyck3-frozen', ['config/dyck3_spectral.py', '--learn=none', '--phase_std=0', '--max_iters=500']
    yield 'dyck3-rope', ['config/dyck3_rope.py', '--max_iters=500']


def start():
    """Where the frequencies start, when they may move, and what weight decay does to them."""
    for task in PERIOD:
        yield f'{task}-rope-linear', [f'config/{task}_rope.py', '--rope=linear']
        for name, option in (('linear', '--rope=linear'), ('late', '--spectral_start=300'),
                             ('frequency-decay', '--frequency_decay=0.1'),
                             ('amplitude-decay', '--amplitude_decay=0.3')):
            yield f'{task}-spectral-{name}', [f'config/{task}_spectral.py', option]


def extrapolation():
    """Can modulo be made to extrapolate? Attention that stays sharp, with fixed, learned and known frequencies."""
    for name in ('rope', 'oracle', 'spectral'):
        yield f'modulo-{name}-log', [*arm('modulo', name), *chosen_rate('modulo', name), '--log_scale=64']
    yield 'modulo-spectral-linear-log', [*arm('modulo', 'spectral'), '--rope=linear', '--log_scale=64']
    yield 'modulo-spectral-decay-log', [*arm('modulo', 'spectral'), '--amplitude_decay=0.3', '--log_scale=64']


def spacing():
    """The control: brackets at regular, random and exponential intervals."""
    for schedule in ('periodic', 'random', 'exponential'):
        for name in ('rope', 'spectral', 'bifocal'):
            options = [f'--task=spacing:schedule={schedule}', '--max_iters=1000']
            yield f'{schedule}-{name}', [f'config/dyck3_{name}.py', *options]


def controls():
    """What every rotation must solve, and what no sense of position can help."""
    for name in ('rope', 'spectral'):
        options = ['--task=lag', '--max_iters=800', '--init_std=0.02', '--learning_rate=2e-3']
        yield f'lag-{name}', [f'config/modulo_{name}.py', *options]
    for name in ('nope', 'rope', 'spectral', 'tapa'):
        yield f'sum-{name}', [*arm('modulo', name), '--task=sum', '--max_iters=1000', '--learning_rate=2e-3']


def long():
    """Text and retrieval, trained at one length; RoPE's extensions are measured on the same weights."""
    for task in LONG:
        for name in arms(task):
            yield f'{task}-{name}', [*arm(task, name), *chosen_rate(task, name)]


def long_muon_rates():
    """Muon on text and passkey, with the knobs that the sweep chose; AdamW's rate for the rest is the same always."""
    for task in LONG:
        for name in MUON_ARMS:
            for rate in muon_rates(task, name):
                yield f'{task}-{name}-{rate:g}', [*with_muon(task, name, rate), *SHORTER.get(task, ())]


def long_muon():
    """Text and passkey with Muon: do the verdicts of `long` depend on the optimiser?"""
    for (task, name), rate in CHOSEN_MUON.items():
        yield f'{task}-{name}', with_muon(task, name, rate)


def tuned_rates():
    """The learning rates of the light fine-tuning, on the models of the sweep, with the knobs that it chose."""
    for task in LONG:
        for name in longer_arms(task):
            attention = name.partition('-')[0]
            knob = CHOSEN_KNOBS.get((task, attention), attention)
            checkpoint = f'{RUNS}/sweep/{task}-{knob}-{knob_rate(task, attention):g}-{{seed}}'
            for rate in longer_rates(task, name):
                yield f'{task}-{name}-{rate:g}', longer(task, name, checkpoint, rate)


def tuned():
    """The models of `long` after the light fine-tuning."""
    for task in LONG:
        for name in longer_arms(task):
            checkpoint = f'{RUNS}/long/{task}-{name.partition("-")[0]}-{{seed}}'
            yield f'{task}-{name}', longer(task, name, checkpoint, LONGER.get((task, name), LONGER_RATES[1]))


def english():
    """The same models on tinyshakespeare, which the README says where to fetch: does prose say what code does?"""
    for name in arms('text'):
        options = [*chosen_rate('text', name), '--task=text:path=out/tinyshakespeare.txt']
        yield f'text-{name}', [*arm('text', name), *options]


def base():
    """RoPE and Spectral from each other's base, RoPE with all wavelengths within the training length or less."""
    for name, value in (('rope', 10000), ('spectral', 100), ('rope', 40), ('rope', 10)):
        yield f'text-{name}-base{value}', [*arm('text', name), f'--rope_base={value}']


def phase():
    """TAPA's own choices, on text: the phase, the exponent of the distance, the share of the amplitude."""
    alphas = ((f'alpha{alpha:g}', f'--tapa_alpha={alpha:g}') for alpha in (0.03, 0.3, 1.0))
    thetas = ((f'theta{theta:g}', f'--tapa_theta={theta:g}') for theta in (0.25, 0.75))
    for name, option in (('linear', '--tapa_phase=linear'), *alphas, *thetas):
        yield f'text-tapa-{name}', [*arm('text', 'tapa'), option]


def budget():
    """Four times the updates on text: do the arms that learn slowly come up?"""
    for name in ('nope', 'rope', 'tapa'):
        yield f'text-{name}', [*arm('text', name), *chosen_rate('text', name), '--max_iters=4000']
    yield 'text-rope-base40', [*arm('text', 'rope'), '--rope_base=40', '--max_iters=4000']


def bases():
    """The trained RoPE models that `surgery` goes on with: weights are not kept in the repository."""
    for task in PERIOD:
        yield f'{task}-rope', arm(task, 'rope')


def surgery_rates():
    """The rates of the frequencies, and on text of the weights, one at a time, on a RoPE of the tuning seeds."""
    for task, patient in PATIENTS.items():
        for name, options in ways_on(task, patient).items():
            for rate, spectral_rate in SURGERY_RATES[task].get(name, ()):
                yield f'{task}-{name}-{rate:g}-{spectral_rate:g}', [*options, f'--learning_rate={rate:g}',
                                                                    f'--spectral_lr={spectral_rate:g}']


def surgery():
    """Surgical Integration: does a trained RoPE recover what Spectral learns from scratch, and gain on text?"""
    for task in (*PERIOD, 'text'):
        patient = f'{RUNS}/{"long" if task == "text" else "bases"}/{task}-rope-{{seed}}'
        for name, options in ways_on(task, patient).items():
            chosen = SURGERY_RATE.get((task, name))
            rates = [f'--learning_rate={chosen[0]:g}', f'--spectral_lr={chosen[1]:g}'] if chosen else []
            yield f'{task}-{name}', [*options, *rates]


def again(part):
    """A part of the first trial, as the configs have it today: the better of both optimisers, at its rate."""
    for name, options in part():
        if name.startswith(tuple(PERIOD)) or part is spacing:  # not the frozen frequencies of dyck, and no text
            yield name, [option for option in options if not option.startswith('--learning_rate')]


def on_period(task, attention, P, *options, noise=0):
    """An arm of the crystals on a task with a period of P tokens; modulo has attention that stays sharp, and Muon."""
    spec = f'{task}:{dict(bio_rotation="period", modulo="modulus")[task]}={P}' + (f',noise={noise:g}' if noise else '')
    return [f'config/{task}_{attention}.py', f'--task={spec}', *options, *(SHARP if task == 'modulo' else [])]


def crystal():
    """Learned frequencies moved to exact harmonics; RoPE's own moved there; and RoPE that had them from the start."""
    for task, P in PERIOD.items():
        for name in ('spectral', 'rope'):
            yield f'{task}-{name}-{P}', on_period(task, name, P)
        yield f'{task}-oracle-{P}', on_period(task, 'rope', P, f'--rope=harmonic:period={P}',
                                              *chosen_rate(task, 'oracle'))


def crystal_periods():
    """Other periods."""
    for task, periods in (('bio_rotation', (5, 7, 13, 16)), ('modulo', (5, 11, 13))):
        for P in periods:
            yield f'{task}-spectral-{P}', on_period(task, 'spectral', P)


def crystal_parts():
    """One Omega for both heads, and one spectral head of two, which is crystallised alone or with the other one."""
    for task, P in PERIOD.items():
        yield f'{task}-shared-{P}', on_period(task, 'spectral', P, '--spectral_shared=True')
        yield f'{task}-bifocal-{P}', on_period(task, 'bifocal', P)


def crystal_noise():
    """A share of the training targets is wrong, in percent."""
    for task, P in PERIOD.items():
        for percent in (1, 5, 10):
            yield f'{task}-noise{percent}-{P}', on_period(task, 'spectral', P, noise=percent / 100)


def crystal_none():
    """Tasks without a period, where none should be found."""
    for task, n, more in (('lag', 800, ['--init_std=0.02']), ('sum', 1000, [])):
        yield f'{task}-spectral', ['config/modulo_spectral.py', f'--task={task}', f'--max_iters={n}', *more]
    yield 'dyck3-spectral', ['config/dyck3_spectral.py', '--max_iters=1000', '--optimizer=muon', '--muon_lr=0.02',
                             '--learning_rate=0.004']
    for task, n in (('passkey', 1000), ('text', 500)):  # in float32, as the others of this study
        yield f'{task}-spectral', [f'config/{task}_spectral.py', f'--max_iters={n}', '--optimizer=adamw',
                                   '--muon_lr=0.02', '--learning_rate=0.002']


STUDIES = {study.__name__: study for study in (
    optimizers, muon, settled, further, other_optimizer, sweep, knobs, headline, periods, layers, lengths,
    frequency_rates, ablation, start, extrapolation, spacing, controls, long, long_muon_rates, long_muon,
    tuned_rates, tuned, english, base, phase, budget, bases, surgery_rates, surgery, crystal, crystal_periods,
    crystal_parts, crystal_noise, crystal_none)}
# parts of the first trial whose verdict may turn with the optimiser
AGAIN = {f'{part.__name__}_again': part for part in (periods, layers, ablation, start, extrapolation, spacing)}
STUDIES |= {name: functools.partial(again, part) for name, part in AGAIN.items()}
SEEDS_OF |= dict.fromkeys(AGAIN, 3)
TWO_OPTIMIZERS = ('optimizers', 'muon', 'settled', 'further', 'other_optimizer', 'long_muon_rates', 'long_muon',
                  *AGAIN, *results.CRYSTALS)  # the others had AdamW alone
# the studies that choose, on validation data, and their seeds
TUNING = {'optimizers': TUNING_SEEDS, 'muon': TUNING_SEEDS, 'sweep': TUNING_SEEDS[:1], 'knobs': TUNING_SEEDS[1:],
          'long_muon_rates': TUNING_SEEDS, 'tuned_rates': TUNING_SEEDS[:1], 'surgery_rates': TUNING_SEEDS[:1]}


# ----------------------------------------------------------------------------------------------------------------------
# Running them


def as_in_the_first_trial(options):
    """Options with what the configs had then, and have no longer: AdamW, other rates, and 4000 updates on dyck."""
    config, *rest = options
    rate = FIRST_RATE.get(Path(config).stem)
    return [config, '--optimizer=adamw', '--muon_lr=0.02', *([f'--learning_rate={rate:g}'] if rate else []),
            *(['--max_iters=4000'] if 'dyck3' in config else []),
            *(['--rope_base=10000'] if 'bio_rotation_rope' in config else []), *rest]


def once_each(options):
    """Options of which the last of each name counts: train.py takes none twice."""
    return list({option.partition('=')[0]: option for option in options}.values())


def commands(study, n_seeds=None):
    """
    (folder, options of train.py) of each run of a study with the seeds 0 to n_seeds - 1 (default: SEEDS_OF or
    N_SEEDS), or with those of TUNING.
    """
    seeds = TUNING.get(study, range(n_seeds or SEEDS_OF.get(study, N_SEEDS)))
    for seed in seeds:  # seed by seed, so that what is there early is a comparison
        for name, options in STUDIES[study]():
            fewer = (n for word, n in FEWER_SEEDS.get(study, {}).items() if word in name.split('-'))
            passed_over = study in ('optimizers', 'long_muon_rates') and not goes_on(name, seed, study)
            if seed >= min(fewer, default=math.inf) or passed_over:
                continue
            options = options if study in TWO_OPTIMIZERS else as_in_the_first_trial(options)
            folder = f'{RUNS}/{study}/{name}-{seed}'
            seeded = [option.format(seed=seed) for option in options]
            yield folder, once_each([*seeded, f'--seed={seed}', f'--out_dir={folder}'])


def crystals(study, folder):
    """{folder in that of a run: options of lab.crystallise}, the crystals that are made of a run; '.' is its own."""
    if study not in results.CRYSTALS:
        return {}
    task, name, *P = folder.split('/')[-1].split('-')[:-1]
    if name == 'oracle':
        return {}
    if study == 'crystal_none':
        return {'.': ['--n=16'] if task == 'text' else []}  # of 64
    settle = [f'--settle={SETTLING[task]}', '--overwrite=True']  # settling that was stopped begins again
    made = {'.': settle if name != 'rope' else ['--heads=all', f'--period={P[0]}', *settle]}
    if name == 'bifocal':
        made['all'] = ['--heads=all', *settle]
    if study == 'crystal' and name == 'spectral':
        made['wrong'] = [f'--period={int(P[0]) + 1}', *settle]
    return made


def longer_without(study, folder, options):
    """The options of train.py that train a run on as long as its crystal settles: a list of one list, or none."""
    if 'wrong' not in crystals(study, folder):
        return []
    n = SETTLING[folder.split('/')[-1].split('-')[0]]
    return [once_each([*options, f'--init_from={folder}/best.pt', f'--out_dir={folder}/longer', f'--max_iters={n}',
                       f'--warmup_iters={min(50, n // 10)}', '--overwrite=True'])]


def evaluations(study, folder):
    """
    {what is measured, '' for best.pt as it is: options of lab.measure} of a run, by results.override_of.

    A checkpoint that may not be there, for no period was found, comes before '', so that '' ends a run.
    """
    name = folder.split('/')[-1]
    task = name.split('-')[0]
    if study == 'optimizers':
        return {'': ['--split=validation', '--multiples', '1']}
    if study == 'crystal_none':
        return {'': ['--n=16', '--multiples', '1']}  # the spectrum is what counts
    if study in results.CRYSTALS:
        measured = ['--n=128', '--multiples', '1', '2', '4', '8', '16']
        files = [Path(into, file).as_posix() for into in crystals(study, folder)
                 for file in ('crystal.pt', 'settled/best.pt')]
        files += ['longer/best.pt'] if longer_without(study, folder, []) else []
        of_files = {f'checkpoint={file}': [*measured, '--checkpoint', file] for file in files} | {'': measured}
        holding = task == 'modulo' and study in ('crystal', 'crystal_periods')
        return {results.held(of): [*words, '--hold-shares'] for of, words in of_files.items()
                if holding and of in ('', 'checkpoint=settled/best.pt')} | of_files
    if study in TUNING:
        return {'': ['--split=validation', *(['--multiples', '1', '--n=16'] if task == 'text' else [])]}
    fewer = ['--n=32'] if task == 'text' else []  # of 64
    measured = {'': fewer}
    if study == 'tuned':  # at the lengths of `long`
        shorter = {'text': ['0.03125', '0.0625', '0.125'], 'passkey': []}[task]
        measured = {'': [*fewer, '--multiples', *shorter, '0.25', '0.5', '1', '2']}
    if study == 'long' and '-rope-' in name:
        measured |= {option: [*fewer, '--override', option] for option in EXTENSIONS.values()}
    if study == 'headline' and name.startswith('modulo-oracle-'):
        measured |= {'log_scale=64': ['--override', 'log_scale=64']}
    return measured


def finished(study, folder, again=False):
    """Are all evaluations of a run in the study's CSV, or in its folder? With `again`, the CSV does not count."""
    needed = {override for override in evaluations(study, folder) if not override.startswith('checkpoint=')}
    name, _, seed = folder.split('/')[-1].rpartition('-')
    rows = [] if again else results.study(study)
    if needed <= {row['override'] for row in rows if (row['name'], str(row['seed'])) == (name, seed)}:
        return True
    there = [json.loads(path.read_text()) for path in (ROOT / folder).glob('eval*.json')]
    return needed <= {results.override_of(result) for result in there}


def scripts(study, folder, options):
    """The commands of a run, each a list of words after `python`: training, its crystals, then every evaluation."""
    again = [option for option in options if option.startswith('--task=text:path=')]  # a path is not opened unasked
    measuring = [['-m', 'lab.measure', folder, *again, *arguments] for arguments in evaluations(study, folder).values()]
    making = [['-m', 'lab.crystallise', folder, f'--into={into}', *words]
              for into, words in crystals(study, folder).items()]
    making += [['train.py', *words] for words in longer_without(study, folder, options)]
    training = ['train.py']
    if study == 'muon':
        variant = folder.split('-')[-2]
        training = ['-m', 'lab.muon', variant if variant in VARIANTS else 'whole']
    return [[*training, *options], *making, *measuring]


def run(study, folder, options, environment):
    """Trains and evaluates; True if both went well. Raises KeyboardInterrupt if Ctrl-C has ended one of them."""
    path = ROOT / folder
    path.parent.mkdir(parents=True, exist_ok=True)
    resume = ['--init_from=resume'] if (path / 'ckpt.pt').exists() else []
    said = path.with_name(f'{path.name}.txt')
    with open(said, 'w') as output:
        for words in scripts(study, folder, once_each(options + resume)):
            if '--checkpoint' in words and not (path / words[words.index('--checkpoint') + 1]).exists():
                continue  # no period was found, so there is no crystal
            done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, stdout=output, stderr=output)
            if done.returncode in (130, -signal.SIGINT):
                raise KeyboardInterrupt
            if done.returncode:
                return False
    said.unlink()
    return True


def run_all(study, todo, jobs):
    """The number of runs that failed. Ctrl-C reaches the runs too: they save and stop, and no new one starts."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = {'OMP_NUM_THREADS': str(threads), **os.environ}  # unless the user has set it
    lock, stopping, started = threading.Lock(), threading.Event(), time.time()
    counts = {True: 0, False: 0}  # runs that went well, runs that failed

    def one(folder, options):
        if stopping.is_set():
            return
        begun = time.time()
        try:
            ok = run(study, folder, options, environment)
        except KeyboardInterrupt:
            return stopping.set()  # here, before this thread starts the next run; the main thread may be later
        with lock:
            if stopping.is_set():
                return
            counts[ok] += 1
            done = sum(counts.values())
            left = (time.time() - started) / done * (len(todo) - done) / 60
            failed = '' if ok else f'  FAILED: see {folder}.txt'
            print(f'{done:>4d}/{len(todo)}  {time.time() - begun:4.0f} s  {folder}{failed}   '
                  f'({counts[False]} failed, {left:.0f} min left)', flush=True)

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
    """Runs or prints what the command line `arguments` (default: sys.argv) names; exit status 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('studies', nargs='*', metavar='STUDY', help=', '.join(STUDIES))
    parser.add_argument('-j', '--jobs', type=int, default=2, help='runs at a time (default: %(default)s)')
    parser.add_argument('--match', nargs='+', default=[''], help='only runs whose folder contains one of these')
    parser.add_argument('--seeds', type=int, metavar='N', help=f"0 to N - 1 (default: {N_SEEDS}, or the study's)")
    parser.add_argument('--again', action='store_true', help='run what has a row already, to compare')
    parser.add_argument('--print', action='store_true', help='print the commands and run nothing')
    options = parser.parse_args(arguments)
    if unknown := set(options.studies) - set(STUDIES):
        parser.error(f'no study {", ".join(sorted(unknown))}: there are {", ".join(STUDIES)}')
    if options.jobs < 1 or options.seeds is not None and options.seeds < 1:
        parser.error('--jobs and --seeds must be at least 1')
    failed = 0
    for study in options.studies or STUDIES:
        chosen = [(folder, command) for folder, command in commands(study, options.seeds)
                  if any(match in folder for match in options.match)]
        if options.print:
            for folder, command in chosen:
                print(' && '.join(shlex.join(['python', *words]) for words in scripts(study, folder, command)))
            continue
        todo = [(folder, command) for folder, command in chosen if not finished(study, folder, options.again)]
        print(f'{study}: {len(chosen) - len(todo)} of {len(chosen)} runs done', flush=True)
        if options.studies:
            failed += run_all(study, todo, options.jobs)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    with one_line_errors():
        main()
