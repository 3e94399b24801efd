"""Scores and gradients as transformers and PEFT have them, in float64: the oracle of tests/gradients.rs.

    pip install torch transformers peft && python make_gradients.py [SEED] > gradients.json

On the checkpoints and adapters of the model crate's tests. Of each gradient its length, its product with a wave, and its
first numbers: what agrees in those three agrees.
"""

import json
import math
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

TESTS = Path(__file__).parents[2] / "model" / "tests"
VOCABULARY = 160
LENGTHS = [20, 7, 11]


def wave(count: int, step: float) -> torch.Tensor:
    return torch.sin(step * torch.arange(1, count + 1, dtype=torch.float64))


def summary(gradient: torch.Tensor) -> dict:
    flat = gradient.flatten()
    return dict(
        norm=flat.norm().item(),
        wave=(flat * wave(len(flat), 0.7)).sum().item(),
        first=flat[:4].tolist(),
    )


def name(parameter: str) -> str:
    return parameter.removeprefix("base_model.model.").replace(".default.weight", ".weight").replace(".base_layer", "")


def case(model: torch.nn.Module, sequences: list[dict]) -> dict:
    logprobs, entropies, hidden = [], [], []
    for sequence in sequences:
        tokens = torch.tensor([sequence["tokens"]])
        output = model(tokens, output_hidden_states=True)
        said = torch.tensor(sequence["mask"][1:])
        distribution = torch.log_softmax(output.logits[0, :-1], -1)[said]
        logprobs.append(distribution.gather(1, tokens[0, 1:][said][:, None])[:, 0])
        entropies.append(-(distribution.exp() * distribution).sum(-1))
        hidden.append(output.hidden_states[-1][0, :-1][said])
    logprobs, entropies, hidden = torch.cat(logprobs), torch.cat(entropies), torch.cat(hidden)
    count = len(logprobs)
    loss = (0.1 * wave(count, 1.3) * logprobs + 0.05 * wave(count, 2.1) * entropies).sum()
    trained = {name(n): p for n, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, trained.values(), retain_graph=True)
    # A head of one number, as a critic has it.
    weight = 0.2 * wave(hidden.shape[1], 0.9)
    values = hidden @ weight + 0.5
    below = {n: p for n, p in trained.items() if not n.startswith("lm_head")}
    of_values = torch.autograd.grad((0.3 * wave(count, 1.7) * values).sum(), below.values(), allow_unused=True)
    pairs = zip(below, of_values)
    return dict(
        logprobs=logprobs.tolist(),
        entropies=entropies.tolist(),
        values=values.tolist(),
        gradients={n: summary(g) for n, g in zip(trained, gradients)},
        value_gradients={n: summary(g) for n, g in pairs if g is not None},
    )


def main(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequences = []
    for length in LENGTHS:
        mask = (torch.rand(length, generator=generator) < 0.6).tolist()
        mask[0], mask[-1] = False, True
        tokens = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        sequences.append(dict(tokens=tokens, mask=mask))
    cases = {}
    for base in ["llama", "qwen2", "qwen3"]:
        load = lambda: AutoModelForCausalLM.from_pretrained(  # noqa: E731
            TESTS / "checkpoints" / base, dtype=torch.float64, attn_implementation="eager"
        )
        cases[base] = case(load(), sequences)
        adapted = PeftModel.from_pretrained(load(), TESTS / "adapters" / base, is_trainable=True).double()
        cases[f"{base}+adapter"] = case(adapted, sequences)
    assert all(math.isfinite(x) for one in cases.values() for x in one["logprobs"])
    print(json.dumps(dict(sequences=sequences, cases=cases)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
