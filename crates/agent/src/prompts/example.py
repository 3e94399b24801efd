import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels.scale_relu(out, x, self.scale, x.numel(), x.shape[-1])
        return out
