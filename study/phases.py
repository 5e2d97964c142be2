"""The tables of related.md: newer attentions on our tasks, layer patterns, dropped positions."""

from lab.table import best_loss, column, listed, table, updates
from study import read
from study.claims import MULTIPLES, beyond

BEYOND = {f'beyond L, at {multiple}L (%)': listed(beyond(multiple), '.0f')
          for multiple in MULTIPLES}
LAYERS = ('text', 'passkey')  # what layer patterns were tried on


def rows_of(wanted):
    """The rows of phases.csv, in the order of what a table names, for which `wanted` is true."""
    rows = [{**row, 'base': row['rope_base'], 'updates at most': row['max_iters']}
            for row in read('phases') if wanted(row)]
    return sorted(rows, key=lambda row: (row['task'], row['attention'], row['frequencies'],
                                         row['max_iters'], row['base'], row['init_from']))


def phases():
    """Every attention on every task."""
    rows = rows_of(lambda row: row['init_from'] == 'scratch' and row['task'] not in LAYERS)
    return table(rows, ['task', 'attention', 'frequencies', 'updates at most'], {
        'solved after': listed(updates, '.0f'), 'loss (nats)': listed(best_loss, '.2g'),
        'right at L (%)': listed(column('final_accuracy', 100), '.0f')} | BEYOND)


def layers():
    """Four layers, of which all rotate, or three, or none."""
    rows = rows_of(lambda row: row['init_from'] == 'scratch' and row['task'] in LAYERS)
    return table(rows, ['task', 'base', 'attention', 'updates at most'], {
        'solved after': listed(updates, '.0f'), 'loss (nats)': listed(best_loss, '.3g'),
        'right at L (%)': listed(column('final_accuracy', 100), '.0f')} | BEYOND)


def dropped():
    """Runs of RoPE that went on for a tenth of their updates: as they were, or without RoPE."""
    rows = rows_of(lambda row: row['init_from'] != 'scratch')
    names = dict(rope='RoPE', nope='no positions')
    rows = [row | {'goes on with': names[row['attention']]} for row in rows]
    return table(rows, ['task', 'goes on with'], {
        'last loss (nats)': listed(column('final_loss'), '.2g')} | BEYOND)


TABLES = {table.__name__: table for table in (phases, layers, dropped)}
