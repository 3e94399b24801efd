import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        # Holds the parameters; its forward is never called.
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)

    def forward(self, x):
        weight, bias = self.conv.weight, self.conv.bias
        batch, in_channels, height, width = x.shape
        out_channels = weight.shape[0]
        out = torch.empty(batch, out_channels, height, width, dtype=x.dtype, device=x.device)
        kernels.conv3x3_relu(out, x, weight, bias, batch, in_channels, out_channels, height, width)
        return out
