"""What study/pairs.py takes away from a model."""

import torch

from lab import pair_use
from study import pairs
from tasks import make_rng, make_task


def test_silence_leaves_the_strongest_pair_of_each_head():
    task = make_task('bio_rotation')
    model, _, queries = pairs.ours(task)
    x = torch.from_numpy(task.sample(make_rng('pairs', 'test'), 4, 64)[0])
    before = pair_use.of_run(model, x)
    pairs.silence(queries, before)
    left = [row for row in pair_use.of_run(model, x) if row['use'] > 0]
    assert [row['head'] for row in left] == [0, 1]
    for row in left:
        rivals = [other['use'] for other in before if other['head'] == row['head']]
        assert row['pair'] == rivals.index(max(rivals))
