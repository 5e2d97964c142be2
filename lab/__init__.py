"""
The lab: tools for runs of anybody, which the page can do without. This file is its door. The page
does not know the lab: `import lab` adds more attentions, frequencies and tasks to the dictionaries
of the page, under names of their own. What is heavy is imported when it is used.
"""

from lab.frequencies import LAB_FREQUENCIES
from lab.tasks import LAB_TASKS
from model import FREQUENCIES
from tasks import TASKS


def add(entries, new):
    """Add {name: object} to a dictionary of the page. A name that is taken is an error."""
    for name, entry in new.items():
        if name in entries and entries[name] is not entry:
            raise ImportError(f'{name} stands in {entries[name].__module__} and in '
                              f'{entry.__module__}: give one of them another name')
        entries[name] = entry


def start_from(source, task, model_args):
    """A model with the weights of another run's checkpoint: see lab/surgery.py."""
    from lab.surgery import start_from
    return start_from(source, task, model_args)


add(FREQUENCIES, LAB_FREQUENCIES)
add(TASKS, LAB_TASKS)
