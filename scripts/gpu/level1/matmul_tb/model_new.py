import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    """A @ B^T"""

    def forward(self, A, B):
        (m, k), n = A.shape, B.shape[0]
        out = torch.empty(m, n, dtype=A.dtype, device=A.device)
        kernels.gemm(out, A, B, m, n, k, 0, 1)
        return out
