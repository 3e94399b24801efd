"""A gated block
from our model zoo."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import (
    Optional,
)

import torch
import torch.nn.functional as F


@dataclass
class Config:
    width: int = 64
    hidden: int = 160
    eps: float = 1e-6


DEFAULT = Config(width=48)


class RMSNorm(torch.nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(config.width))
        self.eps = config.eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Model(torch.nn.Module):
    activation = staticmethod(F.silu)

    def __init__(self, config: Optional[Config] = None):
        super(Model, self).__init__()
        config = config or DEFAULT
        self.norm = RMSNorm(config)
        self.gate = torch.nn.Linear(config.width, config.hidden, bias=False)
        self.up = torch.nn.Linear(config.width, config.hidden, bias=False)
        self.down = torch.nn.Linear(config.hidden, config.width, bias=False)
        self.scale = 1 / math.sqrt(config.hidden)

    def forward(self, x, *, residual: bool = True):
        h = self.norm(x)
        y = self.down(self.activation(self.gate(h)) * self.up(h)) * self.scale
        return x + y if residual else y


def get_init_inputs():
    return []


def get_inputs():
    return [torch.randn(4, 31, 48)]
