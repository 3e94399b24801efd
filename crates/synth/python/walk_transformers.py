"""Finds seeds in the installed transformers: layers that stand by themselves, with their source.

    python walk_transformers.py > ../data/transformers.jsonl

A layer is a seed when its class's source, with nothing but PyTorch and a few constants around it, can be executed, and a
call on drawn inputs gives finite values, twice the same. So a task made of it runs where transformers is not installed.
Sizes stand as `@BATCH@`, `@LENGTH@`, `@HIDDEN@` and `@WIDE@`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
import types
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore")

SIZES = {"@BATCH@": "2", "@LENGTH@": "8", "@HIDDEN@": "64", "@WIDE@": "128"}
# Configuration that stands for one of the sizes.
HIDDEN = {"hidden_size", "d_model", "n_embd", "embed_dim", "dim", "encoder_hidden_size", "hidden_dim", "n_embed", "embedding_size", "word_embed_proj_dim"}
WIDE = {"intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "ffn_hidden_size", "mlp_dim"}
CONSTANTS = {"hidden_act": "gelu", "activation_function": "gelu", "hidden_activation": "gelu_pytorch_tanh", "activation": "gelu",
             "dense_act_fn": "gelu", "feed_forward_proj": "gelu", "mlp_bias": False, "use_bias": True, "bias": False}
HEAD = '''import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from typing import Optional, Tuple, Union
'''
ACTIVATIONS = '''
ACT2FN = {
    "gelu": nn.GELU(), "gelu_new": nn.GELU(approximate="tanh"), "gelu_pytorch_tanh": nn.GELU(approximate="tanh"),
    "gelu_fast": nn.GELU(approximate="tanh"), "relu": nn.ReLU(), "silu": nn.SiLU(), "swish": nn.SiLU(), "tanh": nn.Tanh(),
}
'''
SIZED = "torch.randn(@BATCH@, @LENGTH@, @HIDDEN@)"
WANTED = re.compile(r"(MLP|Norm|FeedForward|FFN|Mlp|Output|Intermediate|Pooler|Transform|DenseGatedActDense|DenseActDense|Head|Projector|Activation|Adapter|Conv|Gate|Layer)$", re.I)


def config_of(source: str, config) -> str | None:
    """A class with every attribute that the source reads, or None if one of them is not plain."""
    names = sorted(set(re.findall(r"\bconfig\.(\w+)", source)))
    lines = []
    for name in names:
        if name in HIDDEN:
            value = "@HIDDEN@"
        elif name in WIDE:
            value = "@WIDE@"
        elif name in CONSTANTS:
            value = repr(CONSTANTS[name])
        elif "dropout" in name or "prob" in name:
            value = "0.0"
        else:
            found = getattr(config, name, None)
            if not isinstance(found, (bool, int, float, str)):
                return None
            value = repr(found)
        lines.append(f"    {name} = {value}")
    return "class Config:\n" + "\n".join(lines or ["    pass"]) + "\n"


def texts(name: str, cls, config) -> list[str]:
    """Tasks to try: one and two inputs, with a configuration or with sizes."""
    source = textwrap.dedent(inspect.getsource(cls))
    source = re.sub(r"^@\w[^\n]*\n", "", source, flags=re.M) if source.startswith("@") else source
    source = re.sub(r'^(\s+)(r?""")(.|\n)*?"""\n', "", source, count=0, flags=re.M)
    parameters = [p for p in list(inspect.signature(cls.__init__).parameters.values())[1:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = [p.name for p in parameters]
    setup = ""
    if needed in ([], ["hidden_size"], ["dim"], ["normalized_shape"], ["d_model"]):
        made = f"{name}({'@HIDDEN@' if needed else ''})"
    elif needed in (["config"], ["config", "layer_idx"], ["config", "layer_id"]):
        found = config_of(source, config)
        if found is None:
            return []
        setup = "\n\n" + found
        made = f"{name}(Config(){', 0' if len(needed) > 1 else ''})"
    else:
        return []
    inputs = [p.name for p in list(inspect.signature(cls.forward).parameters.values())[1:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if not 1 <= len(inputs) <= 2:
        return []
    head = HEAD + (ACTIVATIONS if "ACT2FN" in source else "")
    result = []
    for shapes in ([SIZED] * len(inputs), ["torch.randn(@BATCH@, @LENGTH@, @WIDE@)"] + [SIZED] * (len(inputs) - 1)):
        names = ["x", "residual"][:len(inputs)]
        drawn = "\n".join(f"    {name} = {shape}" for name, shape in zip(names, shapes))
        result.append(
            f"{head}{setup}\n\n{source.rstrip()}\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            f"        self.layer = {made}\n\n    def forward(self, {', '.join(names)}):\n        return self.layer({', '.join(names)})\n\n\n"
            f"def get_inputs():\n{drawn}\n    return [{', '.join(names)}]\n\n\ndef get_init_inputs():\n    return []\n")
    return result


def works(text: str) -> bool:
    for token, value in SIZES.items():
        text = text.replace(token, value)
    space = types.ModuleType("model")
    try:
        exec(compile(text, "model.py", "exec"), space.__dict__)
        torch.manual_seed(0)
        model = space.Model().eval()
        inputs = space.get_inputs()
        with torch.no_grad():
            one, other = model(*inputs), model(*inputs)
        return isinstance(one, torch.Tensor) and one.is_floating_point() and bool(torch.isfinite(one).all()) and torch.equal(one, other) and float(one.std()) > 1e-6
    except Exception:
        return False


def main() -> None:
    import transformers
    import transformers.models

    seen: set[str] = set()
    count = 0
    for package in sorted(info.name for info in pkgutil.iter_modules(transformers.models.__path__)):
        try:
            modeling = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
            configuration = importlib.import_module(f"transformers.models.{package}.configuration_{package}")
        except Exception:
            continue
        configs = [value for name, value in vars(configuration).items() if inspect.isclass(value) and name.endswith("Config") and value.__module__ == configuration.__name__]
        for name, cls in sorted(vars(modeling).items()):
            if not inspect.isclass(cls) or not issubclass(cls, nn.Module) or cls.__module__ != modeling.__name__ or not WANTED.search(name):
                continue
            for config_class in configs:
                try:
                    config = config_class()
                    found = next((text for text in texts(name, cls, config) if works(text)), None)
                except Exception:
                    continue
                if found is None:
                    continue
                # The same layer is in many models under other names.
                body = re.sub(r"\s+", " ", found.replace(name, "Layer"))
                if body not in seen:
                    seen.add(body)
                    count += 1
                    print(json.dumps({"path": f"transformers.models.{package}.modeling_{package}.{name}", "code": found}), flush=True)
                break
    print(count, "layers of transformers", transformers.__version__, file=sys.stderr)


if __name__ == "__main__":
    main()
