import torch
import torch.nn as nn
from warpsmith_kernels import kernels


class ModelNew(nn.Module):
    def forward(self, logits, target):
        rows, classes = logits.shape
        row_loss = torch.empty(rows, dtype=logits.dtype, device=logits.device)  # scratch
        loss = torch.empty((), dtype=logits.dtype, device=logits.device)
        kernels.cross_entropy(loss, row_loss, logits, target, rows, classes)
        return loss
