"""Makes the small random adapters and what PEFT computes with them on the checkpoints.

    pip install torch transformers peft && python make_adapters.py

Between them they have what adapters differ in: all seven projections or some, both rules of scaling,
float32 and bfloat16, and `qwen3-second`, which is made to be stacked on `qwen3`.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from make_checkpoints import FOLDER as CHECKPOINTS
from make_checkpoints import LOGIT_POSITIONS, PROMPT_LENGTH, SIZES, SMALLEST_LEAD, greedy
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

FOLDER = Path(__file__).parent / "adapters"
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Recipe:
    base: str
    rank: int
    alpha: float
    targets: list[str]
    rslora: bool = False
    dtype: torch.dtype = torch.float32
    # The adapter below it.
    below: str | None = None


RECIPES = {
    "llama": Recipe("llama", rank=4, alpha=8, targets=ALL),
    "qwen2": Recipe("qwen2", rank=3, alpha=4, targets=ALL, rslora=True, dtype=torch.bfloat16),
    "qwen3": Recipe("qwen3", rank=4, alpha=6.5, targets=["q_proj", "v_proj", "down_proj"]),
    "qwen3-second": Recipe("qwen3", rank=2, alpha=2, targets=ALL, rslora=True, below="qwen3"),
}


def base(name: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINTS / name, dtype=torch.float32).eval()


def save_random(recipe: Recipe, folder: Path, generator: torch.Generator) -> None:
    """Both factors random: PEFT itself begins with zeros, which change nothing."""
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=recipe.targets,
        use_rslora=recipe.rslora,
        task_type="CAUSAL_LM",
    )
    shutil.rmtree(folder, ignore_errors=True)
    get_peft_model(base(recipe.base), config).save_pretrained(folder)
    (folder / "README.md").unlink()
    file = folder / "adapter_model.safetensors"
    factors = {
        name: (0.15 * torch.randn(factor.shape, generator=generator)).to(recipe.dtype)
        for name, factor in sorted(load_file(file).items())
    }
    save_file(factors, file, metadata={"format": "pt"})
    settings = folder / "adapter_config.json"
    found = json.loads(settings.read_text())
    found.update(base_model_name_or_path=recipe.base, target_modules=sorted(found["target_modules"]))
    settings.write_text(json.dumps(found, indent=2) + "\n")


def stacked(recipe: Recipe, folder: Path) -> PeftModel:
    names = [folder.name] if recipe.below is None else [recipe.below, folder.name]
    model = PeftModel.from_pretrained(base(recipe.base), FOLDER / names[0], adapter_name="0")
    for place, name in enumerate(names[1:], 1):
        model.load_adapter(FOLDER / name, adapter_name=str(place))
    model.base_model.set_adapter([str(place) for place in range(len(names))])
    return model.eval()


@torch.no_grad()
def make(name: str, recipe: Recipe) -> None:
    folder = FOLDER / name
    for seed in range(100, 300):
        generator = torch.Generator().manual_seed(seed)
        save_random(recipe, folder, generator)
        model = stacked(recipe, folder)
        prompt = torch.randint(0, SIZES["vocab_size"], (PROMPT_LENGTH,), generator=generator).tolist()
        continuation, lead = greedy(model, prompt)
        if lead >= SMALLEST_LEAD and len(set(continuation)) > len(continuation) // 4:
            break
    else:
        raise RuntimeError(f"no seed gives {name} a clear continuation")
    tokens = torch.tensor([prompt])
    logits = model(tokens).logits[0]
    change = (logits - base(recipe.base)(tokens).logits[0]).abs().max().item()
    expected = dict(
        base=recipe.base,
        below=recipe.below,
        seed=seed,
        prompt=prompt,
        logits=[dict(position=p, values=[round(v, 5) for v in logits[p].tolist()]) for p in LOGIT_POSITIONS],
        continuation=continuation,
    )
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    print(name, "seed", seed, "lead", round(lead, 3), "largest change of a logit", round(change, 2))


if __name__ == "__main__":
    for name, recipe in RECIPES.items():
        make(name, recipe)
