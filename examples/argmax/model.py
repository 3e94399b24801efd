import torch
import torch.nn as nn

ROWS, COLS = 2048, 4096


class Model(nn.Module):
    """Index of the largest element of every row."""

    def forward(self, x):
        return torch.argmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
