import torch
import torch.nn as nn

ROWS, COLS = 4096, 2048


class Model(nn.Module):
    """Scale every row into [-1, 1] and return the scales too, as before a quantisation."""

    def forward(self, x):
        scale = x.abs().amax(dim=1)
        return x / scale.unsqueeze(1), scale


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
