import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernels.new_gelu(out, x, x.numel())
        return out
