"""Makes the small random checkpoints and what Hugging Face transformers computes with them.

    pip install torch transformers && python make_checkpoints.py

Each checkpoint is one family with what is particular to it: Llama with separate embeddings and
Llama 3's rotary scaling in float32, Qwen2 with biases and tied embeddings in bfloat16, Qwen3 with
norms of heads wider than hidden / heads, in bfloat16 and in shards.
"""

import json
import shutil
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FOLDER = Path(__file__).parent / "checkpoints"
PROMPT_LENGTH = 48
LOGIT_POSITIONS = [0, 1, 17, PROMPT_LENGTH - 1]
GREEDY_LENGTH = 40
# A continuation is only an oracle where rounding cannot change the choice.
SMALLEST_LEAD = 0.02

SIZES = dict(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)


def llama() -> PreTrainedModel:
    scaling = dict(
        rope_type="llama3",
        rope_theta=500_000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=scaling, tie_word_embeddings=False))


def qwen2() -> PreTrainedModel:
    rope = dict(rope_type="default", rope_theta=1_000_000.0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_parameters=rope, tie_word_embeddings=True))


def qwen3() -> PreTrainedModel:
    rope = dict(rope_type="default", rope_theta=1_000_000.0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, rope_parameters=rope, tie_word_embeddings=False))


def randomise(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Larger than at the start of training, so that attention and biases show in the logits."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1.0 + 0.2 * noise if "norm" in name else 0.15 * noise


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], float]:
    """The most probable continuation, and the smallest lead of a chosen token over the next best."""
    tokens, lead = list(prompt), float("inf")
    for _ in range(GREEDY_LENGTH):
        best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
    return tokens[len(prompt) :], lead


@torch.no_grad()
def make(name: str, model: PreTrainedModel, dtype: torch.dtype, shard_size: str) -> None:
    folder = FOLDER / name
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        randomise(model, generator)
        shutil.rmtree(folder, ignore_errors=True)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)
        loaded = type(model).from_pretrained(folder, dtype=torch.float32).eval()
        prompt = torch.randint(0, SIZES["vocab_size"], (PROMPT_LENGTH,), generator=generator).tolist()
        continuation, lead = greedy(loaded, prompt)
        if lead >= SMALLEST_LEAD and len(set(continuation)) > GREEDY_LENGTH // 4:
            break
        model.float()
    else:
        raise RuntimeError(f"no seed gives {name} a clear continuation")
    logits = loaded(torch.tensor([prompt])).logits[0]
    expected = dict(
        seed=seed,
        prompt=prompt,
        logits=[dict(position=p, values=[round(v, 5) for v in logits[p].tolist()]) for p in LOGIT_POSITIONS],
        continuation=continuation,
    )
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(name, "seed", seed, "lead", round(lead, 3), "largest logit", logits.abs().max().item())


if __name__ == "__main__":
    make("llama", llama(), torch.float32, "1GB")
    make("qwen2", qwen2(), torch.bfloat16, "1GB")
    make("qwen3", qwen3(), torch.bfloat16, "120KB")
