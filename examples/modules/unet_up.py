"""An up-block of a U-Net: upsample, concatenate the skip connection, two convolutions."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class DoubleConv(nn.Module):
    def __init__(self, channels: int, filters: int, groups: int = 8):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, filters, 3, padding=1),
            nn.GroupNorm(groups, filters),
            nn.SiLU(),
            nn.Conv2d(filters, filters, 3, padding=1),
            nn.GroupNorm(groups, filters),
            nn.SiLU(),
        )

    def forward(self, x):
        return self.block(x)


class Model(nn.Module):
    def __init__(self, channels: int, skip_channels: int, filters: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(channels // 2 + skip_channels, filters)

    def forward(self, x, skip):
        x = self.up(x)
        # The skip connection may be a pixel larger.
        dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([skip, x], dim=1))


def get_inputs():
    return [torch.randn(2, 64, 24, 24), torch.randn(2, 32, 49, 49)]


def get_init_inputs():
    return [64, 32, 32]
