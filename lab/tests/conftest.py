import math
import os

import pytest
import torch

if not torch.cuda.is_available():
    # before anything imports triton: its kernels then run in numpy
    os.environ['TRITON_INTERPRET'] = '1'

import lab  # noqa: E402
from model import ATTENTIONS, FREQUENCIES, GPTConfig  # noqa: E402
from tasks import TASKS  # noqa: E402
from tests import test_model  # noqa: E402
from tests.conftest import PAGE, ROOT, SMALL, Run, build, run, runs, stir  # noqa: E402, F401
from tests.test_tasks import write_many  # noqa: E402


@pytest.fixture(autouse=True)
def the_labs_own(monkeypatch):
    """A name of the lab is the lab's entry in these tests, also where a reader has taken it."""
    for dictionary, entries in [(ATTENTIONS, lab.LAB_ATTENTIONS), (TASKS, lab.LAB_TASKS),
                                (FREQUENCIES, lab.LAB_FREQUENCIES)]:
        for name, entry in entries.items():
            monkeypatch.setitem(dictionary, name, entry)


def attentions(model):
    return [block.attention for block in model.blocks]


def check_page(check, name, naive, monkeypatch, added=lambda config, weights, T: 0, **options):
    """
    A test of tests/test_model.py, of an attention whose scores are `naive`. Its weights['x'] is
    the layer's input, to which vectors (T, C) may be `added`.
    """
    def with_input(config, weights, x):
        weights['x'] = x + added(config, weights, x.size(1))
        return layer(config, weights, weights['x'])

    layer = test_model.naive_attention
    monkeypatch.setattr(test_model, 'naive_attention', with_input)
    monkeypatch.setitem(test_model.NAIVE, name, naive)
    monkeypatch.setitem(test_model.ARMS, name, dict(attention=name) | options)
    check(name)


def exact(q, k, v, theta=0.5, alpha=GPTConfig.tapa_alpha, scale=2 * math.pi):
    """Causal TAPA of q, k, v (B, nh, T, hs) in float64, by the formula."""
    repeat = q.size(1) // k.size(1)
    q, k, v = q.double(), *(x.double().repeat_interleave(repeat, dim=1) for x in (k, v))
    position = torch.arange(q.size(2), device=q.device)
    distance = (position[:, None] - position).double()
    config = GPTConfig(1, n_head=1, n_embd=q.size(3), tapa_theta=theta, tapa_alpha=alpha,
                       tapa_scale=scale)
    heads = [x.flatten(0, 1) for x in (q, k)]  # (B nh, T, hs)
    scores = test_model.naive_tapa(config, None, None, *heads, distance).unflatten(0, q.shape[:2])
    return scores.masked_fill(distance < 0, float('-inf')).softmax(dim=-1) @ v


@pytest.fixture
def save_letters():
    """save_letters(folder) puts a tokenizer of letters there: a to h are the tokens 0 to 7."""
    tokenizers = pytest.importorskip('tokenizers', reason='needs pip install tokenizers')
    from transformers import PreTrainedTokenizerFast
    letters = {letter: i for i, letter in enumerate('abcdefgh')}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token='a'))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(r'[\s\S]'), 'isolated')
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained


@pytest.fixture
def text_folder(tmp_path):
    """60 small files, each with words of its own."""
    write_many(tmp_path / 'text', 60, lines=300)
    return tmp_path / 'text'
