"""The table of the newer attentions, which stands in related.md."""

from lab.table import best_loss, column, count, listed, solved, table, updates
from study.rows import read


def phases():
    """Every arm of phases.csv on every task: solved, updates, loss, accuracy beyond L."""
    rows = [dict(row, layers=row['n_layer'], updates=row['max_iters']) for row in read('phases')]
    rows.sort(key=lambda row: (row['task'], row['layers'], row['attention'], row['frequencies']))
    cells = {'solved': count(solved), 'after': listed(updates, '.0f'),
             'best loss (nats)': listed(best_loss, '.2g')}
    for multiple in (2, 4, 8):
        right = column(f'beyond_{multiple}L', 100)
        cells[f'right beyond L, at {multiple}L (%)'] = listed(right, '.0f')
    return table(rows, ['task', 'layers', 'attention', 'frequencies', 'updates'], cells)


TABLES = dict(phases=phases)
