"""What lab/analysis.py says of a model, against loops written from the definitions."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lab import LAB_ATTENTIONS, analysis
from lab.tests.conftest import PAGE, attentions, build, stir
from model import Attention, UserError, distances
from tasks import Dyck, make_rng, make_task


# Tasks


@pytest.mark.parametrize('spec, text, marks', [
    ('dyck', '^([])(', ' xx  x'),
    ('bio_rotation:period=3', '^ACG...', ' xxx   '), ('modulo', 'C0123', 'x   '),
    ('modulo', 'C1123', '    '), ('sum', '123', 'xxx')])
def test_sources_are_the_inputs_that_hold_what_answers_need(spec, text, marks):
    task = make_task(spec)
    found = analysis.sources(task, task.encode(text)[None])[0].tolist()
    assert found == [mark == 'x' for mark in marks]


def test_the_parts_of_dyck_against_a_stack():
    task = make_task('dyck')
    x, y = task.sample(make_rng(0, 'breakdown'), 6, 300)
    masks = analysis.breakdown(task, x, y)['depth']
    back = analysis.opener_distance(task, x)
    hard = task.headline(x, y)
    for b in range(6):
        stack = []
        for t in range(299):
            if x[b, t] < 3:
                stack.append(t)
            elif x[b, t] < 6:
                stack.pop()
            if not stack:
                assert back[b, t] == 0
            elif hard[b, t]:
                assert back[b, t] == t + 1 - stack[-1]
                assert masks[str(len(stack))][b, t]
    assert np.array_equal(sum(mask.astype(int) for mask in masks.values()), hard)


@pytest.mark.parametrize('spec, group', [
    ('bio_rotation', 'turn'), ('modulo', 'position'), ('lag', 'position'), ('sum', 'position'),
    ('spacing', 'closer'), ('passkey', 'depth of the key')])
def test_parts_count_every_target_once(spec, group):
    task = make_task(spec)
    x, y = task.sample(make_rng(0, 'breakdown'), 40, 64)
    (found, masks), = analysis.breakdown(task, x, y).items()
    assert found == group
    assert np.array_equal(sum(mask.astype(int) for mask in masks.values()), y >= 0)
    if group == 'turn':
        assert masks['1'].sum() == 40 * 10 and masks['2'][0].argmax() == 1 + 20


def test_the_parts_that_a_task_names_itself_are_shown(monkeypatch):
    """Before those that the lab has for it, and without empty ones."""
    halves = dict(first=[[True, False]], second=[[False, True]], none=[[False, False]])
    masks = {label: np.array(mask) for label, mask in halves.items()}
    monkeypatch.setattr(Dyck, 'breakdown', lambda task, x, y: dict(half=masks), raising=False)
    found = analysis.cells(make_task('dyck'), None, None, np.array([[True, False]]))
    assert found == dict(half=dict(first=[1, 1], second=[0, 1]))


# What was learned


def test_the_table_finds_the_harmonics():
    unit = 2 * math.pi / 7
    model = build(attention='bifocal,rope', n_head=2)
    with torch.no_grad():
        attentions(model)[0].Omega[0] = torch.tensor(
            [unit + 1e-4, -2 * unit, unit - 2e-3, 1e-5, 2 * math.pi, 0.7, 0.7, 0.7])
    rows = analysis.frequency_table(model, 7)
    assert [(row['layer'], row['head'], row['pair']) for row in rows] == [
        (0, 1, pair) for pair in range(8)]  # the spectral head is the last one
    assert [row['harmonic'] for row in rows] == [1, 2, 1, 0, 0, 1, 1, 1]
    assert [row['locked'] for row in rows] == [True, True, *6 * [False]]
    assert rows[0]['error'] == pytest.approx(1e-4, rel=1e-2) and rows[0]['theta'] == 1
    assert [analysis.is_near(row, 7, 64) for row in rows] == [True] * 3 + [False] * 5
    assert analysis.is_near(rows[2], 7, 220)  # 0.44 radians, and half a step is 0.45
    assert not analysis.is_near(rows[2], 7, 230)
    assert 'harmonic' not in analysis.frequency_table(model, None)[0]


def test_learned_numbers_of_all_layers_are_read_from_a_log():
    values = [[[], [[1, 2]], [[3, 4], [5, 6]]], [[], [[7, 8]], [[9, 0], [1, math.inf]]]]
    lines = [dict(Omega=value) for value in values]
    found = analysis.read_learned(lines, 'Omega')
    assert found.tolist() == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 1, math.inf]]
    assert not analysis.read_learned(lines, 'A').size and not analysis.read_learned([], 'A').size


# Scores


@pytest.mark.parametrize('name', [*PAGE, *LAB_ATTENTIONS])
def test_scores_are_those_that_attention_uses(name):
    L = 0 if 'tapa' in name or name in ('pope', 'cope') else 8
    grid = 'yarn:factor=4,fast=8' if name == 'rope_yarn' else 'geometric'
    model = build(attention=name, log_scale_length=L, frequencies=grid)
    attention = stir(model).eval().blocks[1].attention
    x = torch.randn(3, 12, 32)
    weights = analysis.attention_weights(attention, x)
    with torch.no_grad():
        y = attention.proj((weights @ attention.project(x)[2]).transpose(1, 2).flatten(2))
        torch.testing.assert_close(y, attention(x), rtol=1e-4, atol=1e-5)


def test_profiles_average_scores_by_distance(monkeypatch):
    """Modulo's one source is the first symbol, if that is C0: at distance t, for every t > 0."""
    monkeypatch.setattr(analysis, 'SCORES_AT_ONCE', 7 * 4 * 12 * 12)  # seven sequences a time
    model = stir(build(vocab_size=14, attention='bifocal')).eval()
    task = make_task('modulo')
    profile = analysis.score_by_distance(model, task, 12, 50, 'cpu')
    x, _ = task.sample(make_rng('test', 'modulo', 12), 50, 12)
    x = x[x[:, 0] == 7]
    assert 2 < len(x) < 20 and np.shape(profile) == (2, 4, 12)
    with torch.no_grad():
        first = model.blocks[0].norm_1(model.embedding(torch.from_numpy(x)))
    expected = analysis.attention_scores(attentions(model)[0], first)[:, :, :, 0].mean(0)
    expected[:, 0] = math.nan
    assert np.allclose(profile[0], expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize('back', [0, 1, 2])
def test_a_head_that_looks_back_is_found(back):
    """Its scores are 30 at one distance. The other head looks at all keys alike."""
    class Looks(Attention):
        def scores(self, q, k):
            away = (distances(q, k) == back) * torch.tensor([30.0, 0.0])[:, None, None]
            return away.expand(q.size(0), -1, -1, -1)

    model = build(n_head=2, n_layer=2)
    model.blocks[1].attention.__class__ = Looks
    x = np.zeros((2, 12), dtype=np.int64)
    for sharp, blurred in analysis.shares_by_distance(model, x, 'cpu', 3)[1:]:
        assert sharp == pytest.approx([float(d == back) for d in range(3)], abs=1e-4)
        harmonic = [1 / (m + 1) for m in range(2, 12)]
        assert blurred == pytest.approx(3 * [sum(harmonic) / 10], abs=1e-4)


# Eyes


def test_closed_eyes_are_heads_whose_output_is_zero():
    """Heads 0 and 1 are geometric, 2 and 3 spectral; proj reads them side by side."""
    model, x = stir(build(attention='bifocal')).eval(), torch.arange(20)[None] % 11
    opened = model(x)[0]
    for kind, its in (('geometric', slice(0, 16)), ('spectral', slice(16, 32))):
        blind = copy.deepcopy(model)
        for attention in attentions(blind):
            attention.proj.weight.data[:, its] = 0
        with analysis.closed_eyes(model, kind):
            torch.testing.assert_close(model(x)[0], blind(x)[0])
        assert torch.equal(model(x)[0], opened)  # and they open again
    with pytest.raises(UserError, match="attention='rope': only bifocal has eyes to close"):
        with analysis.closed_eyes(build(attention='rope'), 'spectral'):
            pass


# Text


def test_perplexity_by_context_is_what_its_definition_says(text_folder):
    """One token at a time, with the context written out."""
    model, task = build(vocab_size=256).eval(), make_task(f'text:path={text_folder}')
    model.lm_head.weight.data[ord(' ')] *= 20  # some guesses are right
    n, T, longest, stride = 8, 16, 32, 8
    table = analysis.measure_contexts(model, task, T, [8, 16, 32], n, 'cpu', 'train', stride)
    excerpts = analysis.excerpts_of(task, 'train', longest + 1, n, make_rng('train', 'excerpts'))

    @torch.no_grad()
    def nats(excerpt, first, t):
        """Of token t + 1, given those from `first` to t."""
        logits = model(torch.from_numpy(excerpt[None, first:t + 1]))[0][0, -1]
        return F.cross_entropy(logits, torch.tensor(excerpt[t + 1])).item()

    def mean(excerpts, first):
        return np.mean([nats(e, first(t), t) for e in excerpts for t in range(longest)])

    for length in (16, 32):
        expected = mean(excerpts, lambda t: t // length * length)
        assert table[str(length)]['loss'] == pytest.approx(expected, rel=1e-4)
        # the first window that reaches t
        expected = mean(excerpts[:4], lambda t: max(0, -(-(t + 1 - length) // stride) * stride))
        assert table[str(length)]['perplexity'] == pytest.approx(math.exp(expected), rel=1e-4)
    with torch.no_grad():
        likeliest = model(torch.from_numpy(excerpts[:, :-1]))[0].argmax(-1).numpy()
    right = likeliest == excerpts[:, 1:]
    interval = 1.96 * right.mean(axis=1).std(ddof=1) / math.sqrt(n)
    assert table['32']['headline_interval'] == pytest.approx(interval)
    late = right[:, T:]
    assert 0 < right[:, T].mean() != late.mean()
    assert table['32']['beyond'] == table['32']['headline_beyond'] == late.mean()
    assert 'beyond' not in table['16']


def test_excerpts_do_not_overlap_nor_cross_files(text_folder):
    task = make_task(f'text:path={text_folder}')
    files = [tokens.tobytes() for tokens in analysis.read_tokens(task.path, 'bytes')['train']]
    excerpts = analysis.excerpts_of(task, 'train', 500, 10**6, make_rng(0))
    found = [excerpt.astype(np.uint8).tobytes() for excerpt in excerpts]
    assert len(found) == sum(len(file) // 500 for file in files) > 60
    for file in files:  # each file has words of its own
        places = sorted(file.index(text) for text in found if text in file)
        assert len(places) == len(file) // 500 and (np.diff(places) >= 500).all()
    assert len(analysis.excerpts_of(task, 'train', 500, 7, make_rng(0))) == 7
    assert analysis.excerpts_of(task, 'train', 10**6, 7, make_rng(0)).shape == (0, 10**6)
