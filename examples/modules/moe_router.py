"""The router of a mixture of experts: the best two of them, their weights, their places in a buffer of limited capacity."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim: int, experts: int, k: int, capacity: int):
        super().__init__()
        self.experts, self.k, self.capacity = experts, k, capacity
        self.gate = nn.Linear(dim, experts, bias=False)

    def forward(self, x):
        tokens = x.view(-1, x.shape[-1])
        logits = self.gate(tokens)
        probabilities = F.softmax(logits, dim=-1)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        # The first choices of all tokens are served before the second ones.
        mask = F.one_hot(chosen, self.experts).permute(1, 0, 2)
        position = torch.cumsum(mask.reshape(-1, self.experts), dim=0).view_as(mask) - 1
        position = (position * mask).sum(dim=-1).transpose(0, 1)
        kept = position < self.capacity
        weights = weights * kept
        # Switch Transformer's load-balancing loss and ST-MoE's z-loss.
        share = mask[0].float().mean(dim=0)
        balance = self.experts * torch.sum(share * probabilities.mean(dim=0))
        z_loss = torch.logsumexp(logits, dim=-1).pow(2).mean()
        return weights, chosen, position, balance, z_loss


def get_inputs():
    return [torch.randn(8, 256, 512)]


def get_init_inputs():
    return [512, 16, 2, 320]
