"""
What a GPU would show, without one: a tensor that stays on the CPU, and a break of the graph that
torch.compile makes. PyTorch's fake tensors have a shape and a device, and no numbers.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

import train
from conftest import PAGE, ROOT, SMALL
from device import to_device
from eval import evaluate
from model import GPT, GPTConfig
from optim import configure_optimizers

DEVICE = 'cuda:0'
LAB = train.lab.LAB_ATTENTIONS if train.lab else {}
every_attention = pytest.mark.parametrize('name', [
    *PAGE, *(pytest.param(name, marks=pytest.mark.slow) for name in LAB)])

# What PyTorch asks before it indexes a tensor of a device. Built without CUDA, it has none.
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
static c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
static c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
"""


def build(attention, **options):
    fields = dict(vocab_size=11, n_layer=1, n_head=4, n_kv_head=2, n_embd=64) | options
    if attention.endswith('yarn'):  # of these frequencies alone
        fields['frequencies'] = 'yarn:factor=4'
    return GPT(GPTConfig(**fields, attention=attention))


@pytest.fixture(scope='module')
def guard(tmp_path_factory):
    """A guard that does nothing, where this PyTorch has none for CUDA."""
    if torch.backends.cuda.is_built():
        return
    if not shutil.which('c++'):
        pytest.skip('PyTorch is built without CUDA, and there is no C++ compiler')
    source = tmp_path_factory.mktemp('guard') / 'guard.cpp'
    source.write_text(GUARD, encoding='utf-8')
    torch_folder = Path(torch.__file__).parent
    subprocess.run(['c++', '-std=c++20', '-shared', '-fPIC', f'-I{torch_folder}/include',
                    f'-L{torch_folder}/lib', source, '-o', source.with_suffix('.so'), '-lc10'],
                   check=True)
    ctypes.CDLL(str(source.with_suffix('.so')))


@pytest.fixture
def fake_gpu(guard, monkeypatch):
    """Within it, tensors on DEVICE are fake. A number that the code reads off one is 1."""
    properties = SimpleNamespace(major=9)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: properties)
    monkeypatch.setattr(torch.Tensor, 'item', lambda tensor: 1.0)
    monkeypatch.setattr(torch.Tensor, 'pin_memory', lambda tensor: tensor)
    # a real tensor that was left behind counts as one on the CPU
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def backward(model, loss):
    """Gradients of the parameters. Without a GPU, PyTorch has none for fakes: then new tensors."""
    if torch.cuda.is_available():
        loss.backward()
        return
    for p in model.parameters():
        p.grad = torch.empty_like(p)


def train_once(model, x):
    """A step of Muon and AdamW, then one of AdamW alone; x (B, T) is also the target."""
    rates = dict(learning_rate=1e-3, muon_lr=1e-2, positional_lr=1e-2, weight_decay=0.1,
                 beta1=0.9, beta2=0.99)
    for optimizer in ('muon', 'adamw'):
        optimizers = configure_optimizers(model, SimpleNamespace(optimizer=optimizer, **rates))
        logits, loss = model(x, x)
        backward(model, loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
    return logits, loss


@every_attention
def test_no_tensor_stays_on_the_cpu(name, fake_gpu):
    with unset_fake_temporarily():  # PyTorch moves no fake weights
        model = build(name, log_scale_length=8 if name == 'bifocal' else 0)
    model.to(DEVICE)
    x, y = to_device(np.zeros((2, 3, 16), dtype=np.int64), DEVICE)
    logits, loss = train_once(model, x)
    _, _, right = evaluate(model.eval(), x, y, 2)
    greedy = model.generate(x, 3, temperature=0)
    sampled = model.generate(x, 3, top_k=2)
    tensors = [*model.parameters(), *model.buffers(), logits, loss, right, greedy, sampled]
    assert {str(tensor.device) for tensor in tensors} == {DEVICE}
    assert greedy.shape == sampled.shape == (3, 19)
    with pytest.raises(RuntimeError, match='(?i)device'):  # what is left there is found
        torch.zeros(2, device=DEVICE) + torch.arange(2)


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


def test_the_config_for_a_gpu_trains_small(run, monkeypatch, tmp_path):
    ranks = {bytes([i]): i for i in range(256)}  # a token for each byte: no download
    encoding = tiktoken.Encoding('gpt2', pat_str=r'[\s\S]', mergeable_ranks=ranks,
                                 special_tokens={'<|endoftext|>': 256})
    monkeypatch.setattr(tiktoken, 'get_encoding', lambda name: dict(gpt2=encoding)[name])
    (tmp_path / 'text.txt').write_text('one line of a text\n' * 80, encoding='utf-8')
    this = run('small').train(
        str(ROOT / 'config/gpu_text.py'), *SMALL, f'--out_dir={tmp_path}/small', '--n_head=2',
        f'--task=text:encoding=gpt2,path={tmp_path}/text.txt', '--max_iters=2',
        '--gradient_accumulation_steps=2')
    assert this.checkpoint()['model_args']['vocab_size'] == 257
