"""The router of a mixture of experts as Mixtral has it: the best two experts of each token, and their weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim: int, experts: int, k: int):
        super().__init__()
        self.k = k
        self.gate = nn.Linear(dim, experts, bias=False)

    def forward(self, x):
        tokens = x.view(-1, x.shape[-1])
        logits = self.gate(tokens)
        probabilities = F.softmax(logits, dim=1, dtype=torch.float)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        return weights.to(x.dtype), chosen, logits


def get_inputs():
    return [torch.randn(8, 256, 512)]


def get_init_inputs():
    return [512, 16, 2]
