import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, alpha, beta):
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    def forward(self, x, y):
        return cuda_extension.axpby_relu(x, y, self.alpha, self.beta)
