"""The tables of related.md: newer attentions on our tasks, layer patterns, dropped positions."""

from lab.table import best_loss, column, listed, table_of_arms, updates
from study import read
from study.claims import MULTIPLES, beyond

BEYOND = {f'beyond L, at {multiple}L (%)': listed(beyond(multiple), '.0f')
          for multiple in MULTIPLES}
LAYERS = ('text', 'passkey')  # on what four layers, of which all rotate, or three, or none, ran


def rows_of(wanted):
    """The rows of phases.csv, in the order of what a table names, for which `wanted` is true."""
    rows = [{**row, 'base': row['rope_base'], 'updates at most': row['max_iters']}
            for row in read('phases') if wanted(row)]
    return sorted(rows, key=lambda row: (row['task'], row['attention'], row['frequencies'],
                                         row['max_iters'], row['base'], row['init_from']))


def table_of(wanted, by, form):
    """Of the rows that started anew, those that are wanted: when they were solved, and how far."""
    rows = rows_of(lambda row: row['init_from'] == 'scratch' and wanted(row['task']))
    return table_of_arms(rows, [*by, 'updates at most'], {
        'solved after': listed(updates, '.0f'), 'loss (nats)': listed(best_loss, form),
        'right at L (%)': listed(column('final_accuracy', 100), '.0f')} | BEYOND)


def dropped():
    """Runs of RoPE that went on for a tenth of their updates: as they were, or without RoPE."""
    names = dict(rope='RoPE', nope='no positions')
    rows = [row | {'goes on with': names[row['attention']]}
            for row in rows_of(lambda row: row['init_from'] != 'scratch')]
    return table_of_arms(rows, ['task', 'goes on with'], {
        'last loss (nats)': listed(column('final_loss'), '.2g')} | BEYOND)


TABLES = dict(
    phases=lambda: table_of(lambda task: task not in LAYERS,
                            ['task', 'attention', 'frequencies'], '.2g'),
    layers=lambda: table_of(lambda task: task in LAYERS, ['task', 'base', 'attention'], '.3g'),
    dropped=dropped)
