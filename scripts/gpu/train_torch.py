"""What `scripts/gpu/train_speed` sets beside our learner: the same shape in PyTorch, bfloat16, fused AdamW.

train_torch.py eager|compile [SEQUENCES LENGTH]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

STEPS, ROUNDS = 10, 3


def model() -> LlamaForCausalLM:
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
    torch.manual_seed(1)
    return LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)


def measure(kind: str, sequences: int, length: int) -> str:
    learner = model()
    learner.train()
    optimiser = torch.optim.AdamW(learner.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    forward = torch.compile(learner) if kind == "compile" else learner
    tokens = torch.randint(0, 49152, (sequences, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()

    def step() -> torch.Tensor:
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    first = step().item()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS):
            last = step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / STEPS)
    median = statistics.median(times)
    memory = torch.cuda.max_memory_reserved() / 2**30
    return (
        f"| PyTorch {torch.__version__} {kind} | {sequences} x {length} | {sequences * length / median:.0f} | "
        f"{median * 1e3:.2f} | {min(times) * 1e3:.2f} | {memory:.1f} | {first:.3f} to {last.item():.3f} |"
    )


def main() -> None:
    kind, numbers = sys.argv[1], [int(text) for text in sys.argv[2:]]
    for sequences, length in [tuple(numbers)] if numbers else [(8, 1024), (16, 2048)]:
        print(measure(kind, sequences, length), flush=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
