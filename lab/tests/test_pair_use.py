"""The use of pairs, of a run of ours and of a model of transformers."""

import math

import pytest
import torch

from lab import pair_use
from lab.spectralize import spectralize
from lab.tests.conftest import attentions, build, stir
from lab.tests.families import make
from model import UserError

IDX = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))


def use(q, k, i):
    """Of pair i of a head's q and k (B, T, hs), by its definition."""
    hs = q.size(-1)
    q_size, k_size = ((x[..., i]**2 + x[..., i + hs // 2]**2).mean().sqrt() for x in (q, k))
    return (q_size * k_size / math.sqrt(hs)).item()


def test_use_is_the_product_of_the_sizes():
    model = stir(build(attention='spectral'))
    rows = pair_use.of_run(model, IDX)
    first = model.blocks[0]
    q, k, _ = first.attention.project(first.norm_1(model.embedding(IDX)))
    A = first.attention.A[3, 1].item()  # of query and of key
    row = next(row for row in rows if (row['layer'], row['head'], row['pair']) == (0, 3, 1))
    assert row['use'] == pytest.approx(A**2 * use(q[:, 3], k[:, 3], 1), rel=1e-5)


def test_frequencies_are_those_of_the_model():
    model = stir(build(attention='spectral'))
    Omega = torch.cat([attention.Omega for attention in attentions(model)])
    found = [row['frequency'] for row in pair_use.of_run(model, IDX)]
    assert found == pytest.approx(Omega.flatten().tolist(), abs=1e-5)


@pytest.mark.parametrize('name', ['nope', 'selective'])
def test_layers_without_rotation_have_no_rows(name):
    rows = pair_use.of_run(build(attention=f'{name},rope'), IDX)
    assert {row['layer'] for row in rows} == {1}


@pytest.fixture
def llama():
    pytest.importorskip('transformers')
    return make('llama')  # 4 heads of 8 pairs, 2 of keys


def test_a_llama_has_the_same_rows(llama):
    rows = pair_use.of_transformers(llama, IDX)
    assert len(rows) == 2 * 4 * 8
    assert [row['frequency'] for row in rows[:8:2]] == pytest.approx([1, 0.1, 0.01, 0.001])
    inside = llama.model.layers[0]
    x = inside.input_layernorm(llama.model.embed_tokens(IDX))
    q, k = (projection(x).unflatten(2, (-1, 16))
            for projection in (inside.self_attn.q_proj, inside.self_attn.k_proj))
    expected = [use(q[:, :, head], k[:, :, head // 2], pair)
                for head in range(4) for pair in range(8)]
    assert [row['use'] for row in rows[:32]] == pytest.approx(expected, rel=1e-4)


def test_the_pairs_of_a_cohere_stand_side_by_side():
    pytest.importorskip('transformers')
    model = make('cohere')
    rows = pair_use.of_transformers(model, IDX)
    inside = model.model.layers[0]
    x = inside.input_layernorm(model.model.embed_tokens(IDX))
    q, k = (projection(x).unflatten(2, (-1, 16))[:, :, 0, 6:8]  # pair 3 of head 0
            for projection in (inside.self_attn.q_proj, inside.self_attn.k_proj))
    q_size, k_size = (pair.square().sum(dim=-1).mean().sqrt() for pair in (q, k))
    assert rows[3]['use'] == pytest.approx((q_size * k_size / 4).item(), rel=1e-4)


@pytest.mark.parametrize('name, first, second', [
    ('gemma3', 1e4**(-1/16), 1e6**(-1/16)),  # a layer with a window, and one without
    ('deepseek_v3', 1e4**(-1/4), 1e4**(-1/4)),  # four pairs, rotated side by side
    ('sparse deepseek_v32', 1e4**(-1/4), 1e4**(-1/4))])  # its indexer rotates, too
def test_each_layer_has_its_own_frequencies(name, first, second):
    pytest.importorskip('transformers')
    rows = pair_use.of_transformers(make(name), IDX)
    assert [[row['frequency'] for row in rows if (row['layer'], row['head']) == (layer, 0)][1]
            for layer in (0, 1)] == pytest.approx([first, second], rel=1e-5)


def test_learned_frequencies_are_those_of_their_layer(llama):
    """A saved config sorts its layers by name, so that 10 comes before 2."""
    spectralize(llama, phase_std=0.0)
    layers = llama.config.spectral['layers']
    llama.config.spectral['layers'] = dict(reversed(layers.items()))
    with torch.no_grad():
        llama.model.layers[1].self_attn.rotation.Omega[0, 2] = 0.7
    rows = pair_use.of_transformers(llama, IDX)
    assert {row['layer'] for row in rows if row['frequency'] == pytest.approx(0.7)} == {1}


@pytest.mark.parametrize('name', ['pythia', 'gpt2'])
def test_a_model_that_rotates_otherwise_is_refused(name):
    pytest.importorskip('transformers')
    model = make(name)
    with pytest.raises(UserError, match=type(model).__name__):
        pair_use.of_transformers(model, IDX)


@pytest.mark.parametrize('spectral', [False, True])
def test_the_command_draws_a_folder_of_transformers(
        llama, tmp_path, monkeypatch, save_letters, spectral):
    """A row for each pair of each head, with the frequencies that are learned."""
    save_letters(tmp_path / 'llama')
    if spectral:
        spectralize(llama, heads='half', phase_std=0.0)
        with torch.no_grad():
            llama.model.layers[1].self_attn.rotation.Omega[0, 2] = 0.7
    llama.save_pretrained(tmp_path / 'llama')
    (tmp_path / 'text.txt').write_text('hgabcdee')
    drawn = []
    monkeypatch.setattr(pair_use, 'draw_pairs', lambda *arguments: drawn.extend(arguments[2]))
    pair_use.main([str(tmp_path / 'llama'), f'--text={tmp_path}/text.txt'])
    assert (tmp_path / 'llama/pairs.png').read_bytes()[:4] == b'\x89PNG'
    expected = pair_use.of_transformers(llama, torch.tensor([[7, 6, 0, 1, 2, 3, 4, 4]]))
    assert [row['use'] for row in drawn] == pytest.approx([row['use'] for row in expected])
    moved = [(row['layer'], row['head'], row['pair']) for row in drawn
             if row['frequency'] == pytest.approx(0.7)]
    assert moved == ([(1, 2, 2), (1, 3, 2)] if spectral else [])


def test_a_text_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit):
        pair_use.main(['model', '--text=nowhere'])
    assert 'nowhere: must be a file of UTF-8 text' in capsys.readouterr().err


def test_the_command_draws_a_run(run):
    folder = run().train('--attention=spectral').folder
    pair_use.main([str(folder)])
    assert (folder / 'pairs.png').read_bytes()[:4] == b'\x89PNG'


def test_the_figure_of_a_name_on_the_hub_does_not_hide_that_name(tmp_path, monkeypatch):
    """transformers takes a folder of that name for the model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'text.txt').write_text('7', encoding='utf-8')
    rows = [dict(layer=0, head=0, pair=0, frequency=1.0, use=1.0)]
    monkeypatch.setattr(pair_use, 'read_transformers', lambda place, text: rows)
    pair_use.main(['owner/name', '--text=text.txt'])
    assert (tmp_path / 'out/owner/name/pairs.png').exists() and not (tmp_path / 'owner').exists()
