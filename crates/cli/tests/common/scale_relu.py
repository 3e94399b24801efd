import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x):
        # Over and over: whoever does it once is quicker, however noisy the machine.
        for _ in range(16):
            y = torch.relu(x * self.scale)
        return y


def get_inputs():
    return [torch.randn(1024, 256)]


def get_init_inputs():
    return [256]
