"""What `scripts/gpu/train_speed` sets beside our learner: the same shapes in PyTorch, bfloat16, fused AdamW.

train_torch.py eager|compile [lora] [SEQUENCES LENGTH]

SmolLM2-135M's shape with all weights learning; or, with `lora`, Qwen2.5-Coder-1.5B's, frozen, with matrices of rank 32 beside
every projection: float32 as ours are, read in bfloat16.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

STEPS, ROUNDS, RANK, SCALE = 10, 3, 32, 1.0


class Beside(nn.Module):
    """`y = W x + scale * B (A x)`, where W is frozen."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(RANK, base.in_features).uniform_(-0.02, 0.02))
        self.b = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, self.a.to(x.dtype)) * SCALE
        return self.base(x) + F.linear(inner, self.b.to(x.dtype))


def whole() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)


def lora() -> PreTrainedModel:
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rope_theta=1000000.0,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).to(dtype=torch.bfloat16).requires_grad_(False)
        for layer in model.model.layers:
            for module in (layer.self_attn, layer.mlp):
                for name, child in list(module.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(module, name, Beside(child))
    return model


def measure(kind: str, beside: bool, sequences: int, length: int) -> str:
    torch.manual_seed(1)
    learner = lora() if beside else whole()
    learner.train()
    learns = [one for one in learner.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(learns, lr=1e-3, weight_decay=0.01, fused=True)
    forward = torch.compile(learner) if kind == "compile" else learner
    tokens = torch.randint(0, learner.config.vocab_size, (sequences, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()

    def step() -> torch.Tensor:
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learns, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    first = step().item()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    steps = STEPS // 2 if beside else STEPS
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(steps):
            last = step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps)
    median = statistics.median(times)
    memory = torch.cuda.max_memory_reserved() / 2**30
    what = "LoRA" if beside else "all"
    return (
        f"| PyTorch {torch.__version__} {kind}, {what} | {sequences} x {length} | {sequences * length / median:.0f} | "
        f"{median * 1e3:.2f} | {min(times) * 1e3:.2f} | {memory:.1f} | {first:.3f} to {last.item():.3f} |"
    )


def main() -> None:
    kind, words = sys.argv[1], sys.argv[2:]
    beside = "lora" in words
    numbers = [int(text) for text in words if text != "lora"]
    batches = [(8, 2048)] if beside else [(8, 1024), (16, 2048)]
    for sequences, length in [tuple(numbers)] if numbers else batches:
        print(measure(kind, beside, sequences, length), flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
