import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)  # holds the parameters; its forward is never called

    def forward(self, x):
        columns = self.ln.weight.numel()
        rows = x.numel() // columns
        out = torch.empty_like(x)
        part = torch.empty(rows * 256, dtype=torch.float64, device=x.device)
        kernels.layernorm(out, x, self.ln.weight, self.ln.bias, part, rows, columns, self.ln.eps)
        return out
