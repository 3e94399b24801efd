"""Reads a prompt and writes tokens with llama.cpp, as carried by gpt4all; prints tokens a second."""

import os
import sys
import time
from pathlib import Path

from gpt4all import GPT4All

WRITTEN = 64
path = Path(sys.argv[1])
model = GPT4All(path.name, model_path=path.parent, allow_download=False, device="cpu", n_threads=os.cpu_count(), n_ctx=2048, verbose=False)
PROMPT = 512
prompt = "the" + " the" * (PROMPT - 1)  # one token each, in every vocabulary of ours


def run(text: str) -> tuple[float, list[float]]:
    started, stamps = time.perf_counter(), []

    def each(_token: int, _text: str) -> bool:
        stamps.append(time.perf_counter())
        return True

    model.generate(text, max_tokens=WRITTEN, temp=1.0, callback=each)
    return started, stamps


run("warm up")
started, stamps = run(prompt)
print(f"prompt: {PROMPT / (stamps[0] - started):.1f} tokens/s ({PROMPT} tokens)")
print(f"written: {(len(stamps) - 1) / (stamps[-1] - stamps[0]):.1f} tokens/s ({len(stamps)} tokens)")
