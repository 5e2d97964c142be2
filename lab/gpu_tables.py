"""The tables of lab/results/gpu.json, which lab/gpu.py measures."""

import contextlib
import io

from checkpoint import write_files
from lab.bench import with_quartiles
from lab.table import print_table


def place(row):
    """The GPU and the commit, which gpu.json itself does not make dirty."""
    return row['processor'], str(row['commit']).removesuffix('-dirty'), row['torch']


def show(rows):
    """Print a Markdown table for each part, of the rows of each GPU and commit."""
    if not rows:
        print('No figure exists yet.')
    for processor, commit, version in dict.fromkeys(map(place, rows)):
        print(f'`python -m lab.gpu` at {commit}; {processor}; torch {version}; medians [quartiles]')
        here = [row for row in rows if place(row) == (processor, commit, version)]
        for part, (header, cells) in TABLES.items():
            mine = [row for row in here if row['part'] == part]
            good = [row for row in mine if 'error' not in row]
            if good:
                print(f'\n{part}\n')
                print_table(header, cells(good))
            for row in mine:
                if 'error' in row and part != 'tiles':  # some tiles are too large
                    print(f'\n{part} {row["name"]} failed: {row["error"]}')


def step_cells(rows):
    """The lines of the table of training steps. The ratio is to NoPE's time."""
    unit = next((row['ms'][1] for row in rows if row['arm'] == 'nope'), None)
    for row in rows:
        ratio = f'{row["ms"][1] / unit:.3f}' if unit else '-'
        peak = f'{row["MiB"]:,.0f}' if row['MiB'] else '-'
        rate = row['flops'] / row['ms'][1] / 1e9
        yield [row['arm'], with_quartiles(row['ms']), ratio,
               f'{row["tokens_per_second"]:,.0f}', f'{rate:.1f}', peak]


def length_cells(rows):
    """The lines of the table of lengths."""
    for row in rows:
        both = with_quartiles(row['both_ms']) if 'both_ms' in row else '-'
        peak = f'{row["peak_MiB"]:,.0f}' if row.get('peak_MiB') else '-'
        a_score = 1e9 * row['forward_ms'][1] / row['scores']
        yield [row['T'], row['arm'], with_quartiles(row['forward_ms']), f'{a_score:.3g}',
               both, peak]


def tile_cells(rows):
    """The lines of the table of tiles: those in use, and the best of each kernel and head size."""
    for kernel, head_size in dict.fromkeys((row['kernel'], row['head_size']) for row in rows):
        mine = [row for row in rows if (row['kernel'], row['head_size']) == (kernel, head_size)]
        best = min(mine, key=lambda row: row['ms'][1])
        for row in mine:
            words = []
            if row['usual']:
                words.append('in use')
            if row is best:
                words.append(f'best of {len(mine)}')
            if words:
                tile = ', '.join(map(str, row['tile'].values()))
                ms = with_quartiles(row['ms'], 3)
                yield [kernel, head_size, ', '.join(words), tile, ms]


STEP_HEADER = ['arm', 'step (ms)', 'x nope', 'tokens/s', 'TFLOP/s', 'peak MiB']
TABLES = {
    'kernel': (['head size', 'dtype', 'T', 'out', 'dq', 'dk', 'dv'], lambda rows: [
        [row['head_size'], row['dtype'], row['T'],
         *(f'{error:.1e}' for error in row['errors'].values())] for row in rows]),
    'eager': (STEP_HEADER, step_cells),
    'compiled': (STEP_HEADER, step_cells),
    'lengths': (['T', 'arm', 'forward (ms)', 'ps a visited score', 'forward and backward (ms)',
                 'peak MiB'], length_cells),
    'job': (['config', 'seconds', 'in training', 'updates', 'validation loss'], lambda rows: [
        [row['config'], f'{row["seconds"]:.1f}', f'{row["in_training"]:.1f}', row['iterations'],
         f'{row["val_loss"]:.2g}'] for row in rows]),
    'tiles': (['kernel', 'head size', '', 'rows, columns, warps, stages', 'ms'], tile_cells),
}


def write(path, rows):
    """Put the tables into their place in a Markdown file."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        show(rows)
    before, begin, after = path.read_text().partition('<!-- python -m lab.gpu --show -->\n')
    end = after[after.index('<!-- end -->'):]
    write_files(path.parent, {path.name: (before + begin + printed.getvalue() + end).encode()})
