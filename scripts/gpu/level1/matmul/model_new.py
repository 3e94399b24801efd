import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    """A @ B; A may have leading dimensions. The product of triangular matrices needs no more: its zeros come out exact."""

    def forward(self, A, B):
        k, n = B.shape
        out = torch.empty(*A.shape[:-1], n, dtype=A.dtype, device=A.device)
        kernels.gemm(out, A, B, A.numel() // k, n, k, 0, 0)
        return out
