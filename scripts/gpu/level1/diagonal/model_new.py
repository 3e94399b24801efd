import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    """diag(A) @ B"""

    def forward(self, A, B):
        out = torch.empty_like(B)
        kernels.scale_rows(out, A, B, B.shape[0], B.shape[1])
        return out
