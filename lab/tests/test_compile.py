"""What torch.compile makes of a training step: one graph, without a break, compiled once."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lab import tapa
from lab.bench import ADAMW
from lab.tests.conftest import build
from optim import configure_optimizers

# test_bench.py has steps of every arm, and tests/test_devices.py a pass of every attention. Beyond
# STORED tokens the backward pass computes the blocks of tapa_fused anew
CASES = [('tapa_fused', 40, {})]
if torch.cuda.is_available():  # the kernel, and heads too small for it
    CASES += [('tapa_fused', 200, dict(n_embd=64)), ('tapa_fused', 200, dict(n_embd=8))]


@pytest.mark.parametrize('attention, T, options', CASES)
def test_a_compiled_step_is_one_graph_compiled_once(attention, T, options, monkeypatch):
    """Neither a break nor a second compilation; validation, without gradients, has a graph."""
    monkeypatch.setattr(tapa, 'BLOCK', 16)
    monkeypatch.setattr(tapa, 'STORED', 20)
    torch.compiler.reset()
    counter = CompileCounter()
    device = 'cuda' if 'n_embd' in options else 'cpu'
    fields = dict(vocab_size=7, n_head=2, n_embd=16) | options
    model = build(attention=attention, **fields).to(device)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer, = configure_optimizers(model, ADAMW)
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
