import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        scaled = torch.empty_like(x)
        scale = torch.empty(rows, dtype=x.dtype, device=x.device)
        kernels.row_scale(scaled, scale, x, rows, cols)
        return scaled, scale
