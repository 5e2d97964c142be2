"""
The lab: tools for runs of anybody, which the page can do without. This file is its door: eval.py
imports it, if it is there. That adds attentions, frequencies and tasks, under names of their own,
to the dictionaries of the page. It replaces nothing. What is heavy is imported when used.
"""

import sys

from lab.attentions import (T5, Accumulated, ALiBi, CoPE, FoX, Learned, LeRoPE, PhaseOnBoth, PoPE,
                            RandomRoPE, SharedSpectral, Sinusoidal, YaRN)
from lab.frequencies import LAB_FREQUENCIES
from lab.tapa import LinearTAPA, TAPAFused
from lab.tasks import LAB_TASKS
from lab.ways import WAYS
from model import ATTENTIONS, FREQUENCIES
from tasks import TASKS

LAB_ATTENTIONS = dict(
    rope_yarn=YaRN, rope_random=RandomRoPE, lerope=LeRoPE, pope=PoPE, accumulated=Accumulated,
    spectral_shared=SharedSpectral, spectral_phase_both=PhaseOnBoth,
    tapa_fused=TAPAFused, tapa_linear=LinearTAPA,
    alibi=ALiBi, t5=T5, fox=FoX, cope=CoPE, learned=Learned, sinusoidal=Sinusoidal)


def add(title, dictionary, entries):
    """Add entries to a dictionary of the page. A name that it has stays what it is."""
    for name, entry in entries.items():
        used = dictionary.setdefault(name, entry)
        if used is not entry:
            print(f'{title}: {name!r} is the one in {used.__module__}.py, not the one in '
                  f'{entry.__module__}', file=sys.stderr)


def start_from(cfg, given, task):
    """A model with the weights of the checkpoint at cfg.init_from: see lab/surgery.py."""
    from lab.surgery import start_from
    return start_from(cfg, given, task)


def write_figure(path, log, result):
    """Draw what eval.py has measured: see lab/plot.py. Whatever prevents it is a line."""
    from lab.plot import write_figure
    write_figure(path, log, result)


add('ATTENTIONS', ATTENTIONS, LAB_ATTENTIONS)
add('ATTENTIONS', ATTENTIONS, WAYS)
add('FREQUENCIES', FREQUENCIES, LAB_FREQUENCIES)
add('TASKS', TASKS, LAB_TASKS)
