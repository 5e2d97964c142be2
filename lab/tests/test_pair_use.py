"""The use of pairs, of a run of ours and of a model of transformers."""

import math

import pytest
import torch

from lab import pair_use
from lab.tests.conftest import build

IDX = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('n_kv_head', [4, 2])
def test_use_is_the_product_of_the_sizes(n_kv_head):
    model = build(n_kv_head=n_kv_head)
    rows = pair_use.of_run(model, IDX)
    assert len(rows) == 2 * 4 * 4
    x = model.blocks[0].norm_1(model.embedding(IDX))
    q, k, _ = model.blocks[0].attention.project(x)
    row = next(row for row in rows if (row['layer'], row['head'], row['pair']) == (0, 3, 1))
    key = k[:, 3 * n_kv_head // 4]
    size = [torch.stack([one[..., 1], one[..., 5]], -1).norm(dim=-1).square().mean().sqrt().item()
            for one in (q[:, 3], key)]
    assert row['use'] == pytest.approx(size[0] * size[1] / math.sqrt(8), rel=1e-5)


def test_frequencies_are_those_of_the_model():
    model = build(attention='spectral', n_kv_head=2)
    with torch.no_grad():
        model.blocks[1].attention.Omega[1, 2] = -0.7
        model.blocks[1].attention.A[1, 2] = 3
    before = pair_use.of_run(build(attention='spectral', n_kv_head=2), IDX)
    rows = pair_use.of_run(model, IDX)
    changed = [(one, other) for one, other in zip(rows, before)
               if one['frequency'] != pytest.approx(other['frequency'], abs=1e-6)]
    assert [(one['layer'], one['head'], one['pair']) for one, _ in changed] == [
        (1, 2, 2), (1, 3, 2)]  # two query heads share the key/value head
    for one, other in changed:
        assert one['frequency'] == pytest.approx(-0.7, abs=1e-5)
        assert one['use'] == pytest.approx(9 * other['use'], rel=1e-4)  # A of query and of key


def test_layers_without_rotation_have_no_rows():
    rows = pair_use.of_run(build(attention='nope,rope'), IDX)
    assert {row['layer'] for row in rows} == {1}


def test_a_llama_has_the_same_rows():
    transformers = pytest.importorskip('transformers')
    config = transformers.LlamaConfig(vocab_size=11, hidden_size=32, intermediate_size=32,
                                      num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, rope_theta=10000.0)
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(config).eval()
    rows = pair_use.of_transformers(llama, IDX)
    assert len(rows) == 2 * 4 * 4
    assert [row['frequency'] for row in rows[:4]] == pytest.approx([1, 0.1, 0.01, 0.001])
    inside = llama.model.layers[0]
    x = inside.input_layernorm(llama.model.embed_tokens(IDX))
    q, k = (projection(x).view(2, 9, -1, 8).transpose(1, 2)
            for projection in (inside.self_attn.q_proj, inside.self_attn.k_proj))
    uses = torch.tensor([row['use'] for row in rows[:16]]).view(4, 4)
    torch.testing.assert_close(uses, pair_use.strength(q, k), rtol=1e-4, atol=1e-6)
