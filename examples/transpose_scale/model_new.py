import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(1.0 + 0.1 * torch.randn(cols))

    def forward(self, x):
        batch, rows, cols = x.shape
        out = torch.empty(batch, cols, rows, dtype=x.dtype, device=x.device)
        kernels.transpose_scale(out, x, self.scale, batch, rows, cols)
        return out
