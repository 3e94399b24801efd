import torch
import torch.nn as nn

BATCH, IN_CHANNELS, OUT_CHANNELS, HEIGHT, WIDTH = 8, 16, 32, 128, 128


class Model(nn.Module):
    """3x3 convolution with padding 1, bias and ReLU."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
