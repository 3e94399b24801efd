"""Holds our exports and saved adapters against the libraries that others will read them with.

    pip install torch transformers peft gguf
    WARPSMITH_EXPORTS=FOLDER cargo test -p warpsmith-model --features local --test all export -- --ignored
    python check_exports.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from make_adapters import FOLDER as ADAPTERS
from make_adapters import RECIPES, base
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def worst(model: torch.nn.Module, expected: dict) -> float:
    logits = model(torch.tensor([expected["prompt"]])).logits[0].float()
    return max((logits[one["position"]] - torch.tensor(one["values"])).abs().max().item() for one in expected["logits"])


def main() -> None:
    place = Path(sys.argv[1])
    corpus = (ADAPTERS.parent / "tokens/corpus.txt").read_text()
    for name, recipe in RECIPES.items():
        folder = place / name
        expected = json.loads((ADAPTERS / name / "expected.json").read_text())
        found: dict[str, float] = {}
        tokens = []
        for kind in ["folder", "from_gguf"]:
            if (folder / kind).is_dir():
                model = AutoModelForCausalLM.from_pretrained(folder / kind)
                assert model.dtype == torch.float32
                found[kind] = worst(model, expected)
                tokenizer = AutoTokenizer.from_pretrained(folder / kind)
                tokens.append(tokenizer(corpus, add_special_tokens=False)["input_ids"])
                assert tokenizer.eos_token == "<|im_end|>", tokenizer.eos_token
                assert tokenizer.apply_chat_template([dict(role="user", content="go")], tokenize=False) == "user: go<|im_end|>"
        assert all(one == tokens[0] for one in tokens)
        for file in ["f32.gguf", "f16.gguf", "q8_0.gguf"]:
            reader = GGUFReader(folder / file)
            assert reader.fields["general.architecture"].contents() == recipe.base
            kinds = sorted({tensor.tensor_type.name for tensor in reader.tensors})
            # transformers leaves out `rope_freqs.weight`, which llama.cpp's converter makes of Llama 3's scaling.
            config = AutoConfig.from_pretrained(folder / "folder")
            model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, config=config, dtype=torch.float32)
            found[f"{file} {'+'.join(kinds)}"] = worst(model, expected)
        below = [recipe.below] if recipe.below else []
        model = PeftModel.from_pretrained(base(recipe.base), folder / "adapter", adapter_name="saved")
        for one in below:
            model.load_adapter(ADAPTERS / one, adapter_name=one)
        model.base_model.set_adapter(["saved", *below])
        found["adapter"] = worst(model, expected)
        print(name, {kind: f"{error:.1e}" for kind, error in found.items()})
        for kind, error in found.items():
            assert error <= (1e-3 if "f16" not in kind and "q8" not in kind else 1.0), (name, kind, error)


if __name__ == "__main__":
    main()
