import torch
import torch.nn as nn

BATCH, CHANNELS, HEIGHT, WIDTH = 32, 64, 56, 56


class Model(nn.Module):
    """Inference-time batch normalisation, residual addition and ReLU: the tail of a ResNet block."""

    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        with torch.no_grad():  # statistics as after training, not the initial 0 and 1
            self.bn.running_mean.normal_(0.0, 0.5)
            self.bn.running_var.uniform_(0.5, 2.0)
        self.eval()

    def forward(self, x, residual):
        return torch.relu(self.bn(x) + residual)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH) for _ in range(2)]


def get_init_inputs():
    return [CHANNELS]
