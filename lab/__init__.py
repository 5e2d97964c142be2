"""
The lab: tools for runs of anybody, which the page can do without. This file is its door. The page
does not know the lab: `import lab` adds more attentions, grids, tasks, and ways to start to the
dictionaries of the page. What is heavy is imported when it is used.
"""

from checkpoint import CONFIGS, STARTS
from lab.frequencies import GRIDS as LAB_GRIDS
from lab.frequencies import GainRoPE, GainSpectral
from lab.llama import LlamaConfig
from lab.tapa import TAPA
from lab.tasks import LAB_TASKS
from model import ATTENTIONS, GRIDS
from tasks import TASKS


def start_from(source, task, model_args):
    """A model with the weights of a checkpoint, or of a Llama (hf:...): see lab/surgery.py."""
    from lab.surgery import start_from
    return start_from(source, task, model_args)


ATTENTIONS.update(rope=GainRoPE, spectral=GainSpectral, bifocal=GainSpectral, tapa=TAPA)
GRIDS.update(LAB_GRIDS)
TASKS.update(LAB_TASKS)
STARTS.update(checkpoint=start_from, hf=start_from)
CONFIGS.append(LlamaConfig)
