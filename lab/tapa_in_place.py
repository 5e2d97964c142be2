"""
An experiment: TAPA (arXiv 2509.12635) in a transformers model, by its attention interface.

    model = AutoModelForCausalLM.from_pretrained('HuggingFaceTB/SmolLM2-135M')
    tapa_in_place(model)    # its logits change, and training must go on

The matrices stay. The rotation becomes none, and two tokens set the phase of their score:

    score = q_A.k_A / sqrt(hs_A) * cos(scale |m-n|^alpha q_P.k_P / sqrt(hs_P))        (eq. 12)

It was tried on Llama and Mistral. A folder that save_pretrained() writes says nothing of TAPA.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask


def tapa_in_place(model, alpha=0.1, theta=0.5, scale=2 * torch.pi):
    """Make each attention TAPA. The first theta * hs dimensions of a head are the amplitude's."""
    model.config.tapa = dict(alpha=alpha, theta=theta, scale=scale)
    for name, module in model.named_modules():
        if name.endswith('rotary_emb'):
            module.register_forward_hook(no_rotation)
    AttentionInterface.register('tapa', attend)
    AttentionMaskInterface.register('tapa', eager_mask)
    model.set_attn_implementation('tapa')
    return model


def no_rotation(rotary, args, output):
    """A hook: the angle 0 at every position."""
    cos, sin = output
    return torch.ones_like(cos), torch.zeros_like(sin)


def attend(module, q, k, v, mask, scaling=None, **kwargs):
    """q (B, nh, T, hs), k and v (B, nkv, S, hs), mask (B, 1, T, S) to y (B, T, nh, hs)."""
    options, group, hs = module.config.tapa, q.size(1) // k.size(1), q.size(3)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    sizes = [round(options['theta'] * hs), hs - round(options['theta'] * hs)]
    q_A, q_P = q.float().split(sizes, dim=-1)
    k_A, k_P = k.float().split(sizes, dim=-1)
    n = torch.arange(k.size(2), device=k.device)
    m = (n * (mask == 0)).amax(dim=-1, keepdim=True)  # the last key that a query may see is its own
    power = (m - n).abs() ** options['alpha']  # (B, 1, T, S)
    angle = options['scale'] / sizes[1]**0.5 * q_P @ k_P.mT
    scores = q_A @ k_A.mT / sizes[0]**0.5 * torch.cos(power * angle) + mask
    weights = scores.softmax(dim=-1).to(v.dtype)
    return (weights @ v).transpose(1, 2).contiguous(), weights
