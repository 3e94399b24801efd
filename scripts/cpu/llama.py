"""Reads a prompt and writes tokens with llama.cpp, as carried by gpt4all; prints tokens a second."""

import os
import sys
import time
from pathlib import Path

from gpt4all import GPT4All

WRITTEN = 64
path = Path(sys.argv[1])
model = GPT4All(path.name, model_path=path.parent, allow_download=False, device="cpu", n_threads=os.cpu_count(), n_ctx=2048, verbose=False)
prompt = " ".join(f"word{number % 97}" for number in range(170))  # about 512 tokens


def run(text: str) -> tuple[float, list[float]]:
    started, stamps = time.perf_counter(), []

    def each(_token: int, _text: str) -> bool:
        stamps.append(time.perf_counter())
        return True

    model.generate(text, max_tokens=WRITTEN, temp=1.0, callback=each)
    return started, stamps


run("warm up")
started, stamps = run(prompt)
print(f"prompt and first token: {stamps[0] - started:.2f} s")
print(f"written: {(len(stamps) - 1) / (stamps[-1] - stamps[0]):.1f} tokens/s ({len(stamps)} tokens)")
