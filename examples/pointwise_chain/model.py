import torch
import torch.nn as nn

ROWS, FEATURES = 2048, 2048


class Model(nn.Module):
    """Gated residual: residual + silu(x * weight + bias) * sigmoid(gate)."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(features))
        self.bias = nn.Parameter(0.1 * torch.randn(features))

    def forward(self, x, gate, residual):
        h = x * self.weight + self.bias
        return residual + h * torch.sigmoid(h) * torch.sigmoid(gate)


def get_inputs():
    return [torch.randn(ROWS, FEATURES) for _ in range(3)]


def get_init_inputs():
    return [FEATURES]
