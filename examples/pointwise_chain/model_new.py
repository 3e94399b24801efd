import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(features))
        self.bias = nn.Parameter(0.1 * torch.randn(features))

    def forward(self, x, gate, residual):
        out = torch.empty_like(x)
        rows, features = x.shape
        kernels.pointwise_chain(out, x, gate, residual, self.weight, self.bias, rows, features)
        return out
