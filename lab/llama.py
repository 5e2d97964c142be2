"""The options of models with the shapes of Llamas: what GPTConfig derives is a field here."""

from dataclasses import dataclass

from model import GPTConfig


@dataclass
class LlamaConfig(GPTConfig):
    """A GPTConfig with these fields, too. A wrong option raises a UserError."""

    head_size: int = 0  # 0: n_embd / n_head
    n_inner: int = 0  # width of the MLP; 0: as in GPTConfig
    norm_eps: float = 1e-5
    tie_embeddings: bool = False

    def __post_init__(self):
        for name in ('head_size', 'n_inner'):
            self.require(name, 0 <= getattr(self, name) < 2**24, '0, or positive and below 2**24')
        self.require('norm_eps', self.norm_eps > 0, 'positive')
        super().__post_init__()
        self.head_size = self.head_size or super().head_size
        self.n_inner = self.n_inner or super().n_inner

    def require(self, name, ok, allowed):
        # heads of a size of their own need not divide n_embd
        if name == 'n_embd' and self.head_size > 0:
            ok = 0 < self.n_embd < 2**24
        super().require(name, ok, allowed)
