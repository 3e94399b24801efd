"""A ResNet bottleneck that halves the image, with its projection shortcut, as at inference."""

import torch
import torch.nn as nn


def conv1x1(channels: int, filters: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, filters, kernel_size=1, stride=stride, bias=False)


def conv3x3(channels: int, filters: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, filters, kernel_size=3, stride=stride, padding=1, bias=False)


class Model(nn.Module):
    expansion = 4

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        out = width * self.expansion
        self.conv1 = conv1x1(channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, out)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(conv1x1(channels, out, stride), nn.BatchNorm2d(out))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


def get_inputs():
    return [torch.randn(4, 64, 56, 56)]


def get_init_inputs():
    return [64, 32, 2]
