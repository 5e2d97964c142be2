import json

import pytest

import train
from configurator import configure
from study import rows

PERIOD_7 = 0.8975979  # 2 pi / 7, the first harmonic of modulo


@pytest.fixture
def results(tmp_path, monkeypatch):
    """study/results as an empty folder."""
    monkeypatch.setattr(rows, 'RESULTS', tmp_path / 'results')
    return tmp_path / 'results'


@pytest.fixture
def make_run(tmp_path):
    """make_run('confirm/name-0', ...) writes a finished, measured run of modulo; its folder."""
    def make(name, losses=(1.9, 0.5, 0.004), omegas=None, accuracies=(1.0, 0.5), result={},
             **given):
        path = tmp_path / name
        path.mkdir(parents=True, exist_ok=True)
        options = configure(dict(vars(train)), []) | dict(
            seed=int(name.rpartition('-')[2]), task='modulo:modulus=7', max_iters=20) | given
        session = dict(commit='abc', date='2026-11-22', processor='a CPU', threads=1, torch='2')
        log = [dict(iter=10 * i, val_loss=loss, seconds=1.0 * i) for i, loss in enumerate(losses)]
        for line, omega in zip(log, omegas or ()):
            line['Omega'] = [[[omega]]]
        lengths = {str(64 * 2**i): dict(accuracy=a, headline=a, exact=a / 2, loss=0.1)
                   for i, a in enumerate(accuracies)}
        result = dict(task='modulo', block_size=64, checkpoint='best.pt', split='test', n=8,
                      chance=1 / 7, headline=None, lengths=lengths) | result
        texts = {'config.json': json.dumps(dict(options=options, sessions=[session])),
                 'log.jsonl': ''.join(json.dumps(line) + '\n' for line in log)}
        words = rows.override_of(result).replace('/', '-')
        texts[f'eval{words and "_" + words}.json'] = json.dumps(result)
        for file, text in texts.items():
            (path / file).write_text(text)
        return path
    return make
