"""What study/relay.py measures in a model."""

import numpy as np
import torch

from lab import analysis
from model import GPT, GPTConfig
from study import relay
from tasks import make_task

BIO = make_task('bio_rotation')


def one_layer():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=len(BIO.symbols), n_layer=1, init_std=0.5)).eval()


@torch.no_grad()
def test_a_cut_hides_the_keys_of_its_distance_and_no_others():
    model, x = one_layer(), torch.randint(6, (1, 20))
    attention, changed, before = model.blocks[0].attention, x.clone(), model(x)[0]
    changed[0, 7] = (x[0, 7] + 1) % 6
    with relay.cut(attention, ()):
        torch.testing.assert_close(model(x)[0], before)
    with relay.cut(attention, (10,)):
        cut, other = model(x)[0][0], model(changed)[0][0]
    assert torch.equal(cut[17], other[17])  # ten behind the change
    assert not torch.equal(cut[16], other[16]) and not torch.equal(cut[18], other[18])
    torch.testing.assert_close(model(x)[0], before)  # afterwards nothing is cut


def test_shares_are_by_turn_and_by_distance(monkeypatch):
    def scores(attention, x):  # turn 1 looks 10 back, all others 30 back
        position = torch.arange(64)
        wanted = torch.where(position < 21, 10, 30)
        found = 1000.0 * (position[:, None] - position == wanted[:, None])
        return found.expand(len(x), 2, 64, 64)

    monkeypatch.setattr(analysis, 'attention_scores', scores)
    shares = np.array(relay.looks(one_layer(), BIO, 64))  # (1, 2, turns, 64)
    assert shares.shape == (1, 2, 6, 64)
    assert (shares[0, :, 0, 10] == 100).all() and (shares[0, :, 2:, 30] == 100).all()
