"""Writes small modules at odd extents, one for each thing that the compiler is to cover: `modules.py FOLDER`.

`scripts/cpu/check_compiler.py FOLDER` then captures, compiles and compares them; `crates/synth/tests/modules.rs` does it as a test.
A module is what its constructor makes, what `forward` takes and computes, and its inputs.
"""

import sys
from pathlib import Path

BF16, HALF = ".to(torch.bfloat16)", ".to(torch.float16)"
X = "torch.randn(5, 7, 33)"
IMAGE = "torch.randn(3, 6, 13, 11)"

# name: constructor, arguments, body (its last line is returned), inputs
MODULES = {
    "scalar_float": ("", "x, s", "x * s + 1.0", f"{X}, 3.25"),
    "scalar_arithmetic": ("", "x, s", "x / (s * 2.0) - s", f"{X}, 3.25"),
    "scalar_int": ("", "x, n", "x * n", f"{X}, 3"),
    "constant_table": ("", "x", "x * torch.tensor([0.5, -1.0, 2.0, 0.25, 8.0, -3.0, 1.5])[:, None]", X),
    "constant_number": ("", "x", "x + torch.tensor(0.75)", X),
    "constant_kernel": ("", "x", "F.conv1d(x, torch.tensor([[[0.25, 0.5, 0.25]]]).to(x.dtype).expand(7, 1, 3), padding=1, groups=7)", X),
    "triplet": ("self.loss = nn.TripletMarginLoss(margin=0.7)", "a, p, n", "self.loss(a, p, n)", "torch.randn(9, 37), torch.randn(9, 37), torch.randn(9, 37)"),
    "triplet_swap": ("", "a, p, n", "F.triplet_margin_loss(a, p, n, swap=True, reduction='sum')",
                     "torch.randn(9, 37), torch.randn(9, 37), torch.randn(9, 37)"),
    "cosine_embedding": ("", "a, b, y", "F.cosine_embedding_loss(a, b, y, margin=0.2)", "torch.randn(9, 37), torch.randn(9, 37), torch.randn(9).sign()"),
    "margin_ranking": ("", "a, b, y", "F.margin_ranking_loss(a, b, y, margin=0.1)", "torch.randn(39), torch.randn(39), torch.randn(39).sign()"),
    "unfold": ("", "x", "x.unfold(2, 5, 3).mean(-1)", X),
    "patches": ("", "x", "x.unfold(2, 4, 4).unfold(3, 3, 3).flatten(4)", "torch.randn(2, 3, 12, 9)"),
    "einsum_product": ("", "a, b", "torch.einsum('bij,bkj->bik', a, b)", "torch.randn(3, 5, 7), torch.randn(3, 9, 7)"),
    "einsum_outer": ("", "a, b", "torch.einsum('bi,bj->bij', a, b)", "torch.randn(3, 5), torch.randn(3, 7)"),
    "einsum_heads": ("", "a, b", "torch.einsum('bqhd,bkhd->bhqk', a, b)", "torch.randn(2, 5, 3, 8), torch.randn(2, 7, 3, 8)"),
    "einsum_three": ("", "a, b, c", "torch.einsum('bi,ij,bj->b', a, b, c)", "torch.randn(4, 5), torch.randn(5, 7), torch.randn(4, 7)"),
    "einsum_four": ("", "a, b, c, d", "torch.einsum('blhn,bshn,bhls,bshp->blhp', a, b, c, d)",
                    "torch.randn(2, 5, 3, 4), torch.randn(2, 6, 3, 4), torch.randn(2, 3, 5, 6), torch.randn(2, 6, 3, 7)"),
    "einsum_sum": ("", "a", "torch.einsum('bij->ji', a)", "torch.randn(3, 5, 7)"),
    "cat_rows": ("self.norm = nn.LayerNorm(33)", "x, y", "torch.cat([torch.softmax(x, -1), self.norm(y), x], dim=1)", f"{X}, torch.randn(5, 3, 33)"),
    "one_hot_places": ("", "i", "m = F.one_hot(i, 5).permute(1, 0, 2).reshape(-1, 5)\nmasked = (torch.cumsum(m, 0) - 1) * m\nmasked.sum(-1), m.amax(0), masked < 9",
                       "torch.randint(0, 5, (17, 2))"),
    "whole_sums": ("", "i", "torch.cumsum(i, -1), torch.cumsum(i > 1, 0), i.sum(), i.prod(1), i.amin(-1)", "torch.randint(-3, 4, (9, 7))"),
    "any_all": ("", "x", "(x > 2).any(-1), (x > -2).all(1)", X),
    "image_in_lines": ("self.conv = nn.Conv2d(48, 8, (3, 5), stride=(1, 2), padding=(2, 1), dilation=(2, 1))", "x", "self.conv(x)", "torch.randn(2, 48, 41, 47)"),
    "sort": ("", "x", "v, i = torch.sort(x, dim=1, descending=True)\nv * 2, i", X),
    "sort_ties": ("", "x", "torch.sort(torch.round(x), stable=True, dim=-1).indices", X),
    "argsort_gathered": ("", "x, y", "torch.gather(y, 1, torch.argsort(torch.sin(x), dim=1))", f"{X}, {X}"),
    "topk_many": ("", "x", "torch.topk(x, 12, dim=-1)", X),
    "bag_sum": ("self.bag = nn.EmbeddingBag(40, 9, mode='sum')", "i", "torch.relu(self.bag(i))", "torch.randint(0, 40, (6, 5))"),
    "bag_mean": ("self.bag = nn.EmbeddingBag(40, 9)", "i", "self.bag(i)", "torch.randint(0, 40, (6, 5))"),
    "bag_weighted": ("self.bag = nn.EmbeddingBag(40, 9, mode='sum')", "i, w", "self.bag(i, per_sample_weights=w)", "torch.randint(0, 40, (6, 5)), torch.rand(6, 5)"),
    "topk_values": ("", "x", "torch.topk(x, 3, dim=-1).values", X),
    "topk_router": ("self.gate = nn.Linear(33, 7)", "x", "p = torch.softmax(self.gate(x), -1)\nv, i = torch.topk(p, 2, dim=-1)\nv / v.sum(-1, keepdim=True)", X),
    "topk_least": ("", "x", "torch.topk(x, 2, dim=1, largest=False).indices", X),
    "step": ("", "x", "x[:, 1::2, ::3] * 2", X),
    "lists": ("self.register_buffer('places', torch.tensor([3, 0, 6, 2]))", "x", "x[:, self.places] + 1", X),
    "table": ("self.bias = nn.Parameter(torch.randn(11, 4))\nself.register_buffer('where', torch.arange(25).reshape(5, 5) % 11)", "x",
              "x + self.bias[self.where].permute(2, 0, 1)", "torch.randn(3, 4, 5, 5)"),
    "positions": ("self.table = nn.Embedding(40, 33)", "x", "x + self.table(torch.arange(x.shape[1]))", X),
    "diag": ("", "x, y", "torch.diag(x) @ y + torch.diag(y[:, 0], -2)[2:, :5] + torch.diag(y).sum()", "torch.randn(7), torch.randn(7, 5)"),
    "diag_above": ("", "x", "torch.diag(x, 3)", "torch.randn(13)"),
    "causal_mask": ("", "x", "m = torch.triu(torch.ones(9, 9, dtype=torch.bool), diagonal=1)\ntorch.softmax(x.masked_fill(m, float('-inf')), -1)",
                    "torch.randn(3, 9, 9)"),
    "padding_mask": ("", "x, m", "torch.where(m, x, torch.zeros_like(x)).sum(-1) / m.sum(-1).clamp(min=1)", f"{X}, torch.rand(5, 7, 33) > 0.3"),
    "count": ("", "x", "(x > 0.2).sum(dim=-1)", X),
    "cast": ("", "x", "(x > 0).float() * x + (x * 3).to(torch.int64).float()", X),
    "attention": ("", "q, k, v", "F.scaled_dot_product_attention(q, k, v, is_causal=True)", "torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16)"),
    "attention_cross": ("", "q, k, v", "F.scaled_dot_product_attention(q, k, v)", "torch.randn(2, 3, 5, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 8)"),
    "attention_mask": ("", "q, k, v, m", "F.scaled_dot_product_attention(q, k, v, attn_mask=m)",
                       "torch.randn(2, 3, 5, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16), torch.arange(9)[None, None, None] < 7"),
    "attention_bias": ("", "q, k, v, m", "F.scaled_dot_product_attention(q, k, v, attn_mask=m)",
                       "torch.randn(2, 3, 5, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 16), torch.randn(3, 5, 9)"),
    "attention_groups": ("", "q, k, v", "F.scaled_dot_product_attention(q, k, v, enable_gqa=True)",
                         "torch.randn(2, 6, 5, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)"),
    "matmul_broadcast": ("", "a, b", "torch.matmul(a, b)", "torch.randn(2, 3, 5, 7), torch.randn(3, 7, 4)"),
    "norms": ("", "x", "x / torch.norm(x, p='fro') + torch.linalg.vector_norm(x, ord=1, dim=-1, keepdim=True) + x.norm(p=3, dim=1, keepdim=True)", X),
    "max_pool_ceil": ("", "x", "F.max_pool2d(x, 3, stride=2, ceil_mode=True)", IMAGE),
    "avg_pool_ceil": ("", "x", "F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True)", IMAGE),
    "avg_pool_inside": ("", "x", "F.avg_pool2d(x, (3, 2), stride=2, padding=1, count_include_pad=False)", IMAGE),
    "avg_pool_divisor": ("", "x", "F.avg_pool2d(x, 3, divisor_override=5)", IMAGE),
    "nearest": ("self.up = nn.Upsample(scale_factor=2)", "x", "self.up(x) * 2", IMAGE),
    "nearest_line": ("", "x", "F.interpolate(x, scale_factor=3)", X),
    "bilinear": ("", "x", "F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=False)", IMAGE),
    "bilinear_size": ("", "x", "F.interpolate(x, size=(9, 17), mode='bilinear', align_corners=False)", IMAGE),
    "bilinear_corners": ("", "x", "F.interpolate(x, size=(9, 17), mode='bilinear', align_corners=True)", IMAGE),
    "linear": ("", "x", "F.interpolate(x, size=50, mode='linear')", X),
    "trilinear": ("", "x", "F.interpolate(x, scale_factor=2, mode='trilinear')", "torch.randn(2, 3, 5, 4, 3)"),
    "distances": ("", "a, b", "torch.cdist(a, b)", "torch.randn(2, 5, 9), torch.randn(2, 7, 9)"),
    "defaults": ("", "x, scale=None, shift: float = 0.0", "x * 2 + shift", X),
    "two_results": ("self.a, self.b = nn.Linear(33, 5), nn.Linear(33, 9)", "x", "torch.relu(self.a(x)), self.b(x).mean(1)", X),
    # Sums in single precision, tensors in half of it.
    "bf16_pointwise": ("", "x, y", "F.gelu(x) * torch.sigmoid(y)", f"{X}{BF16}, {X}{BF16}"),
    "bf16_softmax": ("", "x", "torch.softmax(x, -1)", f"{X}{BF16}"),
    "bf16_softmax_wide": ("", "x", "torch.softmax(x, -1, dtype=torch.float32).to(torch.bfloat16)", f"{X}{BF16}"),
    "bf16_layer_norm": (f"self.norm = nn.LayerNorm(33){BF16}", "x", "self.norm(x) + x", f"{X}{BF16}"),
    "bf16_rms_norm": (f"self.weight = nn.Parameter(torch.ones(33){BF16})", "x",
                      "h = x.float()\nh = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)\nself.weight * h.to(x.dtype)", f"{X}{BF16}"),
    "bf16_linear": (f"self.fc = nn.Linear(33, 17){BF16}", "x", "torch.relu(self.fc(x))", f"{X}{BF16}"),
    "bf16_conv": (f"self.conv = nn.Conv2d(6, 9, 3, padding=1){BF16}", "x", "F.silu(self.conv(x))", f"{IMAGE}{BF16}"),
    "bf16_cumsum": ("", "x", "torch.cumsum(x, 1)", f"{X}{BF16}"),
    "bf16_attention": ("", "q, k, v", "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                       f"torch.randn(2, 3, 9, 16){BF16}, torch.randn(2, 3, 9, 16){BF16}, torch.randn(2, 3, 9, 16){BF16}"),
    "bf16_wide": ("", "x", "torch.relu(x) * 2 + 1", f"torch.randn(8, 64){BF16}"),
    "fp16_pointwise": ("", "x, y", "F.silu(x) * y", f"{X}{HALF}, {X}{HALF}"),
    "fp16_sum": ("", "x", "x.sum(dim=1)", f"{X}{HALF}"),
    "fp16_linear": (f"self.fc = nn.Linear(33, 17){HALF}", "x", "F.gelu(self.fc(x))", f"{X}{HALF}"),
    "int32_lookup": ("self.table = nn.Embedding(40, 9)", "i", "self.table(i)", "torch.randint(0, 40, (5, 7), dtype=torch.int32)"),
}


def module(constructor: str, arguments: str, body: str, inputs: str) -> str:
    *before, last = body.split("\n")
    lines = lambda text: "".join(f"        {line}\n" for line in text if line)
    return f"""import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{lines(constructor.split(chr(10)))}
    def forward(self, {arguments}):
{lines([*before, f"return {last}"])}

def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in MODULES.items():
        (folder / f"{name}.py").write_text(module(*parts))


if __name__ == "__main__":
    main()
