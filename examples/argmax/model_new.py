import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty(rows, dtype=torch.int64, device=x.device)
        kernels.argmax_rows(out, x, rows, cols)
        return out
