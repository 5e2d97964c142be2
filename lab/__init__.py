"""
The lab: tools for runs of anybody, which the page can do without. This file is its door. The page
does not know the lab: `import lab` adds attentions, frequencies and tasks, under names of their
own, to the dictionaries of the page. It replaces nothing. What is heavy is imported when used.
"""

from lab.frequencies import LAB_FREQUENCIES, YaRN
from lab.phases import Accumulated, LeRoPE, PhaseOnBoth, PoPE, RandomRoPE, SharedSpectral
from lab.positions import T5, ALiBi, CoPE, FoX, Learned, Sinusoidal
from lab.tapa import LinearTAPA, TAPAFused
from lab.tasks import LAB_TASKS
from model import ATTENTIONS, FREQUENCIES, UserError
from tasks import TASKS

LAB_ATTENTIONS = dict(
    rope_yarn=YaRN, rope_random=RandomRoPE, lerope=LeRoPE, pope=PoPE, accumulated=Accumulated,
    spectral_shared=SharedSpectral, spectral_phase_both=PhaseOnBoth,
    tapa_fused=TAPAFused, tapa_linear=LinearTAPA,
    alibi=ALiBi, t5=T5, fox=FoX, cope=CoPE, learned=Learned, sinusoidal=Sinusoidal)


def add(title, dictionary, entries):
    """Add entries to a dictionary of the page. Raises UserError for a name that it has."""
    for name, entry in entries.items():
        if dictionary.get(name, entry) is not entry:
            modules = [each.__module__ for each in (dictionary[name], entry)]
            raise UserError(f'{title} has {name!r} twice, in the modules {" and ".join(modules)}: '
                            'give one of them another name')
        dictionary[name] = entry


def start_from(source, task, model_args):
    """A model with the weights of a checkpoint: see lab/surgery.py."""
    from lab.surgery import start_from
    return start_from(source, task, model_args)


def write_figure(path, log, result):
    """Draw what eval.py has measured: see lab/plot.py. Whatever prevents it is a line."""
    from lab.plot import write_figure
    write_figure(path, log, result)


add('ATTENTIONS', ATTENTIONS, LAB_ATTENTIONS)
add('FREQUENCIES', FREQUENCIES, LAB_FREQUENCIES)
add('TASKS', TASKS, LAB_TASKS)
