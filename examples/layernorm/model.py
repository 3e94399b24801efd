import torch
import torch.nn as nn

ROWS, FEATURES = 4096, 2048


class Model(nn.Module):
    """Residual addition followed by layer normalisation, as between two transformer blocks."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x, residual):
        return self.norm(x + residual)


def get_inputs():
    return [torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
