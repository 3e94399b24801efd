"""Makes what dequantisation is held against, with llama.cpp's own Python package.

    pip install gguf==0.19.0 && python make_quantized.py

`quantized/blocks.json`: for each of ggml's types, a few random blocks and the numbers that they stand for, both as the hex
digits of their bytes. Every bit of a block is random but the exponents of its scales, so that the numbers are finite.
"""

import json
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Where each type keeps half floats.
HALVES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.F16: [0],
    Type.BF16: [],
}
BLOCKS = 3


def main() -> None:
    random = np.random.default_rng(7)
    expected = {}
    for kind, halves in HALVES.items():
        _, block_bytes = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, size=(BLOCKS, block_bytes), dtype=np.uint8)
        for at in halves:
            scales = random.uniform(-0.1, 0.1, size=BLOCKS).astype(np.float16)
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
        if kind == Type.BF16:
            numbers = random.normal(size=BLOCKS).astype(np.float32)
            blocks = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(BLOCKS, 2)
        numbers = dequantize(blocks.reshape(-1), kind).astype(np.float32)
        assert np.isfinite(numbers).all()
        expected[kind.name] = {"blocks": blocks.tobytes().hex(), "numbers": numbers.tobytes().hex()}
    path = Path(__file__).parent / "quantized" / "blocks.json"
    path.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
