"""The script that trains a transformers model's frequencies: a tiny model and a tiny text."""

import pytest
import torch

transformers = pytest.importorskip('transformers', reason='needs pip install transformers')

from model import UserError  # noqa: E402
from lab import finetune_spectral  # noqa: E402
from lab.spectralize import Rotation, load_spectral  # noqa: E402
from lab.tests.families import build  # noqa: E402


@pytest.fixture
def model(tmp_path, save_letters):
    """A folder with a tiny Qwen and a tokenizer of letters."""
    save_letters(tmp_path / 'model')
    build('qwen2', {}).save_pretrained(tmp_path / 'model')
    (tmp_path / 'text.txt').write_text('abcdefgh' * 225)
    return tmp_path / 'model'


def run(model, out, *options):
    finetune_spectral.main([str(model), str(out), '--text', str(model.parent / 'text.txt'),
                            '--steps=8', '--length=32', '--batch=2', *options])
    return load_spectral(out)


@pytest.mark.parametrize('options, frozen', [
    (['--rotation_lr=0.05'], True), (['--lr=0.003', '--heads=half'], False)])
def test_frequencies_alone_or_all_weights_learn_a_text(
        model, tmp_path, capsys, monkeypatch, options, frozen):
    old = transformers.AutoModelForCausalLM.from_pretrained(model).state_dict()
    train, learning = finetune_spectral.train, []

    def spy(model, *rest):
        learning.append(model.lm_head.weight.requires_grad)
        return train(model, *rest)
    monkeypatch.setattr(finetune_spectral, 'train', spy)
    new = run(model, tmp_path / 'out', *options)
    words = capsys.readouterr().out.split()
    before, after = (float(words[words.index(name) + 1].strip(',')) for name in ('before', 'after'))
    assert after < before
    same = [torch.equal(weight, new.state_dict()[name]) for name, weight in old.items()]
    assert all(same) == frozen and learning == [not frozen]
    theta = new.model.rotary_emb.inv_freq
    moved = [(m.Omega - theta).abs().max() for m in new.modules() if isinstance(m, Rotation)]
    circles = 32 / (2 * torch.pi) * max(moved).item()
    assert min(moved) > 0
    assert float(words[words.index('circles') - 1]) == pytest.approx(circles, rel=0.1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
    assert tokenizer('ca').input_ids == [2, 0]


@pytest.mark.parametrize('out, options, message', [
    ('out', ['--length=400'], '1800 tokens: must be at least 20'),
    ('out', ['--heads=most'], "heads='most'"), ('out', ['--lr=nan'], 'lr=nan: must be from 0 to 1'),
    ('model', [], 'exists: choose another folder'), ('text.txt', [], 'text.txt exists'),
    ('text.txt/out', [], 'could not write')])
def test_mistakes_are_one_line(model, tmp_path, out, options, message):
    with pytest.raises(UserError, match=message):
        run(model, tmp_path / out, *options)


def test_a_loss_that_is_not_finite_saves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune_spectral, 'train', lambda *_: (1.0, float('nan')))
    with pytest.raises(UserError, match='the loss is not finite, and nothing is saved'):
        run(model, tmp_path / 'out')
    assert not (tmp_path / 'out').exists()
