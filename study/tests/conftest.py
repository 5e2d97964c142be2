import pytest

import study
from lab.runs import IDENTITY, MADE_WITH, write_table
from study import claims


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write('map', rows) makes the CSV of these rows, in study/results as an empty folder."""
    monkeypatch.setattr(study, 'RESULTS', tmp_path)

    def write(name, found):
        write_table(tmp_path / f'{name}.csv', found)
        study.read_file.cache_clear()
    yield write
    study.read_file.cache_clear()


def run_of(task, attention, base, optimizer, rate, seed, solved_at, reach=0.5):
    """A row of a run."""
    rates = dict(learning_rate=0.004, muon_lr=0.02)
    rates[dict(adamw='learning_rate', muon='muon_lr')[optimizer]] = rate
    identity = dict.fromkeys(IDENTITY, 'x') | dict(seed=seed)
    options = dict(task=task, attention=attention, rope_base=base, optimizer=optimizer,
                   max_iters=claims.BUDGETS[task], block_size=64, **rates)
    found = dict(solved_at=solved_at, best_loss=0.5 if solved_at is None else 0.009)
    found |= {f'beyond@{64 * multiple}': reach / multiple for multiple in claims.MULTIPLES}
    return identity | options | dict.fromkeys(MADE_WITH, 'x') | found
