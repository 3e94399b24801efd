import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        # Holds the parameters and statistics; its forward is never called.
        self.bn = nn.BatchNorm2d(channels)
        self.eval()

    def forward(self, x, residual):
        bn = self.bn
        out = torch.empty_like(x)
        batch, channels, height, width = x.shape
        # The statistics are folded inside the kernel, in every call: they may change between calls.
        kernels.bn_add_relu(
            out, x, residual, bn.weight, bn.bias, bn.running_mean, bn.running_var,
            batch, channels, height * width, bn.eps,
        )
        return out
