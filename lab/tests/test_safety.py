"""Attacks on the lab's programs: broken runs side by side, absurd sizes."""

import pytest
import torch

import eval as page
from lab import memory
from model import GPTConfig
from tests.conftest import Run


@pytest.mark.parametrize('name, content', [
    ('config.json', '{"options": {}}'), ('config.json', '[]'), ('config.json', 'null'),
    ('log.jsonl', '{}\n'),
    ('config.json', '{"options": {"max_iters": "\\u001b[31m"}, "sessions": 7}'),
    ('eval.json', '[]'),
    ('eval.json', '{"lengths": {"16": 3}}')])
def test_side_by_side_a_broken_run_is_skipped_and_others_are_shown(
        run, capsys, monkeypatch, tmp_path, name, content):
    from lab import compare
    for run_name in ('good', 'broken'):
        this = run(run_name).train('--max_iters=1')
        page.main([str(this.folder), '--multiples', '1', '--n=4', '--device=cpu'])
    (this.folder / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    compare.main([str(run('good').folder), str(run('broken').folder)])
    printed = capsys.readouterr()
    assert 'skipped' in printed.err and 'broken' in printed.err
    assert '\x1b' not in printed.err + printed.out
    assert printed.err.count('skipped') == 1 and '| rope' in printed.out


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run, and what it saved."""
    this = Run(tmp_path_factory.mktemp('trained') / 'run').train('--max_iters=1')
    return this, this.checkpoint()


def test_absurd_sizes_are_refused_by_the_lab(trained, tmp_path):
    from lab import bench, crystallise
    from lessons import look
    with pytest.raises(ValueError, match='GiB of memory'):
        bench.main(['--lengths', '100000000000', '--device=cpu'])
    this, _ = trained
    checkpoint = torch.load(this.folder / 'best.pt', weights_only=True)
    checkpoint['options']['block_size'] = 2**20
    folder = tmp_path / 'long'
    folder.mkdir()
    torch.save(checkpoint, folder / 'best.pt')
    for program in (look, crystallise):
        with pytest.raises(ValueError, match='GiB of memory'):
            program.main([str(folder)])


def test_the_estimate_is_near_what_a_model_has():
    config = GPTConfig(vocab_size=50, n_layer=3, n_embd=64)
    from model import GPT
    weights = sum(p.numel() for p in GPT(config).parameters() if p.dim() > 1)
    free = memory.free_bytes
    try:
        memory.free_bytes = lambda device: (4 * weights) / 2 - 1
        with pytest.raises(ValueError, match='GiB'):
            memory.check(config, 'cpu', 0, 0, 0)
        memory.free_bytes = lambda device: (4 * weights) / 2
        memory.check(config, 'cpu', 0, 0, 0)
    finally:
        memory.free_bytes = free
