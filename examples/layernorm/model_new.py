import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)  # holds the parameters; its forward is never called

    def forward(self, x, residual):
        out = torch.empty_like(x)
        rows, features = x.shape
        kernels.add_layernorm(out, x, residual, self.norm.weight, self.norm.bias, rows, features, self.norm.eps)
        return out
