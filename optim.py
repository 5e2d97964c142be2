"""
The optimizers: AdamW for all parameters; or Muon for the matrices of the blocks, and AdamW for
the other parameters.
"""

import torch
import torch.nn as nn


def configure_optimizers(model, cfg):
    """
    [AdamW] or [AdamW, Muon]. Each parameter has one role:

        Omega, A, Phi, or yours    positional_lr, no decay: it would pull frequencies to zero
        embeddings, norms          learning_rate, no decay
        matrices (Muon)            muon_lr, no decay: those of the blocks, with optimizer='muon'
        matrices                   learning_rate, weight_decay: the others
    """
    positional = model.positional_parameters()
    embeddings = {layer.weight for layer in model.modules() if isinstance(layer, nn.Embedding)}
    groups = {}
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p in positional:
            role, lr, decay = positional[p], cfg.positional_lr, 0.0
        elif p in embeddings or p.dim() < 2:
            role, lr, decay = 'embeddings, norms', cfg.learning_rate, 0.0
        elif cfg.optimizer == 'muon' and p.dim() == 2 and p is not model.lm_head.weight:
            role, lr, decay = 'matrices (Muon)', cfg.muon_lr, 0.0
        else:
            role, lr, decay = 'matrices', cfg.learning_rate, cfg.weight_decay
        if role not in groups:  # the schedule in train.py changes lr, and keeps peak_lr
            groups[role] = dict(role=role, lr=lr, peak_lr=lr, weight_decay=decay, params=[])
        groups[role]['params'].append(p)

    muon = groups.pop('matrices (Muon)', None)
    adamw = torch.optim.AdamW(groups.values(), betas=(cfg.beta1, cfg.beta2), fused=True)
    return [adamw, Muon([muon])] if muon else [adamw]


class Muon(torch.optim.Optimizer):
    """
    The update is the momentum with all its singular values moved near 1 (Jordan et al. 2024).
    torch.optim.Muon does so in bfloat16, on most CPUs ten times slower than float32.
    """

    def __init__(self, groups, momentum=0.95):
        super().__init__(groups, dict(momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            momentum = group['momentum']
            for p in group['params']:
                if p.grad is None:  # the loss does not depend on p
                    continue
                if p not in self.state:
                    self.state[p]['momentum_buffer'] = torch.zeros_like(p)
                average = self.state[p]['momentum_buffer']
                average.lerp_(p.grad, 1 - momentum)
                update = orthogonalize(p.grad.lerp(average, momentum))  # Nesterov's
                # a tall matrix (more outputs than inputs) takes longer steps
                p.sub_(update, alpha=group['lr'] * max(1, p.size(0) / p.size(1)) ** 0.5)


def orthogonalize(G):
    """The matrix G with its singular values moved near 1, by five Newton-Schulz steps."""
    wide = G.size(0) < G.size(1)
    X = G if wide else G.mT
    X = X / X.norm().clamp(min=1e-7)
    for _ in range(5):  # a singular value s becomes 3.4445 s - 4.775 s^3 + 2.0315 s^5
        gram = X @ X.mT
        X = 3.4445 * X + (2.0315 * gram @ gram - 4.775 * gram) @ X
    return X if wide else X.mT
