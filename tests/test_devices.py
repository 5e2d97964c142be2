"""
What a GPU would show, without one: a tensor that stays on the CPU, and a break of the graph that
torch.compile makes.
"""

import pytest
import tiktoken
import torch

import train
from conftest import PAGE, ROOT, SMALL
from model import GPT, GPTConfig

LAB = train.lab.LAB_ATTENTIONS if train.lab else {}


def build(attention, **options):
    fields = dict(vocab_size=11, n_layer=1, n_head=4, n_kv_head=2, n_embd=64) | options
    if attention.endswith('yarn'):  # of these frequencies alone
        fields['frequencies'] = 'yarn:factor=4'
    return GPT(GPTConfig(**fields, attention=attention))


@pytest.mark.parametrize('name', [*PAGE, *LAB])
def test_no_tensor_stays_on_the_cpu(name):
    """Tensors on meta have no numbers, and refuse one of the CPU. No step reads a number off."""
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
