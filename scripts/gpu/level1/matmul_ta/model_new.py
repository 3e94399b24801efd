import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    """A^T @ B"""

    def forward(self, A, B):
        (k, m), n = A.shape, B.shape[1]
        out = torch.empty(m, n, dtype=A.dtype, device=A.device)
        kernels.gemm(out, A, B, m, n, k, 1, 0)
        return out
