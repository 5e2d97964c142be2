import pytest

from study import claims, rows

COMMON = dict(max_iters=1000, learning_rate=0.004, muon_lr=0.02)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """study/results as an empty folder."""
    folder = tmp_path / 'results'
    folder.mkdir()
    monkeypatch.setattr(rows, 'RESULTS', folder)
    rows.read_file.cache_clear()
    yield folder
    rows.read_file.cache_clear()


@pytest.fixture
def write(results):
    """write('map', rows) makes a CSV as study/run.py does."""
    def write(name, found):
        columns = list(found[0])
        lines = [','.join(columns)]
        for row in found:
            lines.append(','.join('' if row[c] is None else str(row[c]) for c in columns))
        (results / f'{name}.csv').write_text('\n'.join(lines) + '\n')
        rows.read_file.cache_clear()
    return write


def run_of(task, attention, base, optimizer, rate, seed, solved_at, reach=0.5):
    """A row of study/run.py."""
    rates = {dict(adamw='learning_rate', muon='muon_lr')[optimizer]: rate}
    row = dict(COMMON, task=task, attention=attention, rope_base=base, optimizer=optimizer,
               seed=seed) | rates
    row['max_iters'] = claims.BUDGETS[task]
    row.update(solved_at=solved_at, best_val_loss=0.5 if solved_at is None else 0.009)
    return row | {f'beyond_{multiple}L': reach / multiple for multiple in claims.MULTIPLES}
