"""Makes what the shipped models' own weights are held against, with Hugging Face transformers.

    pip install torch transformers accelerate gguf && python make_shipped.py SMOLLM2.gguf

transformers dequantises the file and computes in float32, so the reply is the model's own; ours rounds
activations to eight bits on the way, so the test allows for that.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 48
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France, and what is it known for?<|im_end|>\n<|im_start|>assistant\n"
)


@torch.no_grad()
def main() -> None:
    path = Path(sys.argv[1])
    source = dict(pretrained_model_name_or_path=str(path.parent), gguf_file=path.name)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    tokens = tokenizer(PROMPT)["input_ids"]
    prompt, log_probabilities, leads = len(tokens), [], []
    for _ in range(LENGTH):
        distribution = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        best = distribution.topk(2)
        tokens.append(best.indices[0].item())
        log_probabilities.append(round(best.values[0].item(), 4))
        leads.append(round((best.values[0] - best.values[1]).item(), 4))
    print(tokenizer.decode(tokens[prompt:]))
    expected = dict(text=PROMPT, prompt=tokens[:prompt], reply=tokens[prompt:], log_probabilities=log_probabilities, leads=leads)
    (Path(__file__).parent / "tokens/smollm2-135m-reply.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
