"""What torch.compile makes of a training step: one graph, without a break, compiled once."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lab.tests.conftest import build
from model import ATTENTIONS

# beyond 1024 tokens TAPA goes by blocks, whose scores the backward pass computes anew
CASES = [(attention, 16, {}) for attention in ATTENTIONS]
CASES += [('rope', 16, dict(rope='yarn:factor=4')), ('tapa', 200, {}), ('tapa', 1100, {})]
if torch.cuda.is_available():  # the kernel, and heads too small for it
    CASES += [('tapa', 200, dict(n_embd=64)), ('tapa', 200, dict(n_embd=8))]


@pytest.mark.parametrize('attention, T, options', CASES)
def test_a_compiled_step_is_one_graph_compiled_once(attention, T, options):
    """Neither a break nor a second compilation; validation, without gradients, has a graph."""
    torch.compiler.reset()
    counter = CompileCounter()
    device = 'cuda' if 'n_embd' in options else 'cpu'
    fields = dict(vocab_size=7, n_head=2, n_embd=16) | options
    model = build(attention=attention, **fields).to(device)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer, = model.configure_optimizers(1e-3, 0.1, (0.9, 0.99), 1e-2)
    x = torch.randint(7, (2, T), device=device)
    for _ in range(4):
        compiled(x, x)[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counter.frame_count == 1
    with torch.no_grad():
        compiled(x, x)
        compiled(x, x)
    assert counter.frame_count == 2
