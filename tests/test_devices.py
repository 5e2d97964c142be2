"""
What a GPU would show, without one: a tensor that stays on the CPU, a step that waits for the GPU,
a break of the graph that torch.compile makes, what a CUDA graph does not repeat.
"""

import contextlib
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import train
from conftest import PAGE, assert_same_run
from model import ATTENTIONS, FREQUENCIES, GPT, Attention, GPTConfig

LAB = train.lab.LAB_ATTENTIONS if train.lab else {}


@pytest.fixture(autouse=True)
def the_labs_own(monkeypatch):
    """A name of the lab is the lab's own here, also where a reader has taken it."""
    for name, kind in LAB.items():
        monkeypatch.setitem(ATTENTIONS, name, kind)
        monkeypatch.setitem(FREQUENCIES, 'yarn', train.lab.LAB_FREQUENCIES['yarn'])


def build(attention, **options):
    fields = dict(vocab_size=11, n_layer=1, n_head=4, n_embd=64) | options
    if attention.endswith('yarn'):  # of these frequencies alone
        fields['frequencies'] = 'yarn:factor=4'
    return GPT(GPTConfig(**fields, attention=attention))


@pytest.mark.parametrize('name', [*PAGE, *LAB])
def test_no_tensor_stays_on_the_cpu(name, monkeypatch):
    """Tensors on meta have no numbers, and refuse one of the CPU. No step reads a number off."""
    monkeypatch.setattr(torch, 'autocast', lambda *_, **__: contextlib.nullcontext())  # no meta
    model = build(name, log_scale_length=8 if name == 'bifocal' else 0).to('meta')
    idx = torch.zeros(2, 12, dtype=torch.int64, device='meta')
    model(idx, idx)[1].backward()
    for temperature in (0, 1.0):
        assert model.generate(idx, 3, temperature, top_k=2).shape == (2, 15)


@pytest.mark.parametrize('name, lengths', [
    ('rope,spectral,nope', [16]), ('bifocal,tapa', [16, 24]),  # the second length is a symbol
    *(pytest.param(name, [16], marks=pytest.mark.slow) for name in LAB)])
def test_it_compiles_into_one_graph(name, lengths):
    """Loss, gradients and logits stay. Where the graph breaks, fullgraph fails."""
    model = build(name, n_layer=1 + name.count(',')).eval()  # without random positions
    torch.compiler.reset()
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    for length in lengths:
        x = torch.randint(model.config.vocab_size, (2, length))
        losses = [each(x, x)[1] for each in (model, compiled)]
        gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close(gradients[1], gradients[0])
        with torch.no_grad():
            torch.testing.assert_close(compiled(x)[0], model(x)[0])


class CPUGraph(TorchDispatchMode):
    """
    A CUDA graph on the CPU. Within it, calls are noted, and what they changed is put back: a GPU
    computes nothing then. `replay` repeats them into the same memory.
    """
    made = []

    def __init__(self):
        super().__init__()
        self.calls, self.before, self.replays = [], [], 0
        self.made.append(self)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError('operation not permitted when stream is capturing')
        if function._schema.is_mutable:
            self.before += [(x, x.clone()) for x in tree_leaves(args) if torch.is_tensor(x)]
        result = function(*args, **kwargs or {})
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def __exit__(self, *error):
        super().__exit__(*error)
        for x, old in reversed(self.before):
            x.copy_(old)

    def replay(self):
        self.replays += 1
        for function, args, kwargs, result in self.calls:
            inputs = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs))
                      if torch.is_tensor(x)}
            with torch.no_grad():
                again = function(*args, **kwargs)
                for x, new in zip(tree_leaves(result), tree_leaves(again)):
                    if torch.is_tensor(x) and x.untyped_storage().data_ptr() not in inputs:
                        x.copy_(new)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that a run makes with --graph=True, on the CPU."""
    monkeypatch.setattr(CPUGraph, 'made', [])
    for name, stand_in in dict(CUDAGraph=CPUGraph, graph=lambda graph, stream: graph,
                               Stream=mock.Mock, current_stream=mock.Mock,
                               stream=lambda stream: contextlib.nullcontext()).items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(train, 'check_options', lambda cfg, hardware: None)  # it wants a GPU
    return CPUGraph.made


@pytest.mark.parametrize('options', [
    ['--attention=bifocal'], ['--attention=tapa', '--optimizer=adamw', '--grad_clip=0.0']], ids=str)
def test_a_graph_changes_nothing(run, graphs, options):
    options = [*options, '--max_iters=8', '--gradient_accumulation_steps=2']
    plain, graphed = run('plain').train(*options), run('graphed').train('--graph=True', *options)
    [graph] = graphs
    assert graph.replays == 2 * 8 - 3  # three calls come before
    assert_same_run(plain, graphed)


def test_a_number_that_a_graph_cannot_wait_for_is_named(run, graphs, monkeypatch):
    class Waits(Attention):
        def rotate(self, q, k, position):
            return q * q.norm().item(), k
    monkeypatch.setitem(ATTENTIONS, 'waits', Waits)
    with pytest.raises(RuntimeError) as error:
        run().train('--attention=waits', '--graph=True', '--eval_interval=6')
    assert '--graph=False' in error.value.__notes__[0]


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, 'a number is read'
        return function(*args, **kwargs or {})


@pytest.mark.parametrize('optimizer', ['muon', 'adamw'])
def test_an_update_never_waits_for_a_gpu(optimizer):
    """To read a number off a GPU, as .item() does, is to wait for it."""
    model = build('bifocal')
    cfg = mock.Mock(optimizer=optimizer, learning_rate=1e-3, muon_lr=1e-2, positional_lr=1e-2,
                    weight_decay=0.1, beta1=0.9, beta2=0.99)
    optimizers = train.configure_optimizers(model, cfg)
    x = torch.zeros(2, 12, dtype=torch.int64)
    with NoWaiting():
        model(x, x)[1].backward()
        train.clip_grad_norm_(model.parameters(), 1.0)
        for one in optimizers:
            one.step()
