import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLS = 2048, 2048


class Model(nn.Module):
    """Cosine similarity of matching rows: three reductions over the same two inputs."""

    def forward(self, x, y):
        return F.cosine_similarity(x, y, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
