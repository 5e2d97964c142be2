import os

import pytest
import torch

if not torch.cuda.is_available():
    # before anything imports triton: its kernels then run in numpy
    os.environ['TRITON_INTERPRET'] = '1'

import lab  # noqa: E402, F401
from tests.conftest import ROOT, SMALL, Run, build, run, runs, stir  # noqa: E402, F401
from tests.test_tasks import write_many  # noqa: E402


def attentions(model):
    return [block.attention for block in model.blocks]


@pytest.fixture
def text_folder(tmp_path):
    """60 small files, each with words of its own."""
    write_many(tmp_path / 'text', 60, lines=300)
    return tmp_path / 'text'
