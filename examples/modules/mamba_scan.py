"""A Mamba block with its selective scan written as a loop over time."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim: int, state: int, width: int = 4, expand: int = 2):
        super().__init__()
        self.inner, self.state, self.rank = expand * dim, state, -(-dim // 16)
        self.in_proj = nn.Linear(dim, 2 * self.inner, bias=False)
        self.conv1d = nn.Conv1d(self.inner, self.inner, width, groups=self.inner, padding=width - 1)
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.inner)
        steps = torch.arange(1, state + 1, dtype=torch.float32)
        self.A_log = nn.Parameter(torch.log(steps.repeat(self.inner, 1)))
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, dim, bias=False)

    def forward(self, x):
        length = x.shape[1]
        x, gate = self.in_proj(x).chunk(2, dim=-1)
        x = self.conv1d(x.transpose(1, 2))[..., :length].transpose(1, 2)
        x = F.silu(x)
        y = self.selective_scan(x)
        return self.out_proj(y * F.silu(gate))

    def selective_scan(self, x):
        A = -torch.exp(self.A_log)
        dt, B, C = torch.split(self.x_proj(x), [self.rank, self.state, self.state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        dA = torch.exp(dt.unsqueeze(-1) * A)
        dBx = dt.unsqueeze(-1) * B.unsqueeze(2) * x.unsqueeze(-1)
        h = torch.zeros(x.shape[0], self.inner, self.state, device=x.device, dtype=x.dtype)
        ys = []
        for t in range(x.shape[1]):
            h = dA[:, t] * h + dBx[:, t]
            ys.append((h * C[:, t].unsqueeze(1)).sum(dim=-1))
        return torch.stack(ys, dim=1) + x * self.D


def get_inputs():
    return [torch.randn(2, 64, 64)]


def get_init_inputs():
    return [64, 16]
