import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def forward(self, x, y):
        rows, cols = x.shape
        out = torch.empty(rows, dtype=x.dtype, device=x.device)
        kernels.row_cosine(out, x, y, rows, cols, 1e-8)
        return out
