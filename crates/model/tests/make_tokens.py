"""Makes what the tests of the tokenizer and the chat template are held against.

    pip install transformers==4.49.0 jinja2 regex gguf && python make_tokens.py SMOLLM2.gguf QWEN2.5-CODER.gguf

- `corpus.txt`: mixed text (code, many scripts, emoji, digits, odd spaces and odd Unicode).
- `tiny.json`: a small byte-level BPE trained on it, and the corpus's tokens for each way of splitting,
  by the `tokenizers` package of Python (whose regular expressions are another engine's than ours).
- `smollm2-135m.json`, `qwen2.5-coder-1.5b.json`: the corpus's tokens by the tokenizers that transformers
  has in plain Python, over the vocabulary of the shipped file.
- `chats.json`: conversations, and what transformers makes of them with each shipped template.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import regex
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

FOLDER = Path(__file__).parent / "tokens"

SNIPPETS = [
    "#include <cuda_runtime.h>\n__global__ void add(const float* __restrict__ a, float *b, int n) {\n"
    "\tint i = blockIdx.x * blockDim.x + threadIdx.x;\n\tif (i < n) b[i] += a[i];  // 3.14159e-10f, 0xFFu\n}\n",
    "def forward(self, x: torch.Tensor) -> torch.Tensor:\n    return F.softmax(x @ self.w.T / 8 ** 0.5, dim=-1)\n\n\n",
    "let total: u64 = (0..1_000_000).filter(|n| n % 3 == 0).sum(); // it's 166666833333\r\n",
    '{"name": "write", "arguments": {"path": "kernels/x.cu", "text": "a\\nb\\t\\u00e9"}}\n',
    "I'm sure they'LL say we'd've done it; don't You'Re RIGHT, it'S 12,345,678.90 € (or $1e6)!\n",
    "Größenwahn, naïve café, cafe\u0301, Ångström, e\u0301\u0323, \ufb01ne, ½, x², №7, Ⅷ\n",
    "你好，世界！今天是2026年11月15日。北京大学的学生们正在写代码。\n東京タワーは333メートルです。カタカナとひらがな。\n",
    "안녕하세요 세계! 한국어 문장입니다. Привет, мир! Ελληνικά 123. שלום עולם. مرحبا بالعالم ١٢٣. हिन्दी में १२३। ไทยภาษา\n",
    "🙂👍🏽👩‍👩‍👧‍👦🇩🇪 🏳️‍🌈 1️⃣2️⃣ ✈️…“quotes” — dashes – and ‘more’\n",
    "   leading\n\n\n    indented\n\t\ttabs \t mixed  \n  trailing   \u00a0nbsp\u3000ideographic\u200bzero-width\u2028line\n \n  \n\n",
    "a" * 70 + " " * 37 + "=" * 80 + "\n" + "0123456789" * 5 + "\n",
    "<|im_start|>user\nspecial tokens<|im_end|>\n<tool_call>\n{}</tool_call> <|endoftext|> <|im_star|> <|im_end|><|im_end|>",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE __dunder__ a.b.c::d->e @f #g\n",
]


def corpus() -> str:
    """The snippets, and random characters of the planes that are in use, the same each time."""
    draw = random.Random(7)
    text = "".join(SNIPPETS)
    ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x900, 0xDFF), (0x2000, 0x2BFF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)]
    for low, high in ranges:
        text += "".join(chr(draw.randint(low, high)) + draw.choice(["", "", " ", "\n", "9"]) for _ in range(400))
    return text + "\n" + "".join(SNIPPETS[:5])


QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)


def by(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITTINGS = {
    "qwen2": (normalizers.NFC(), by(QWEN2), False),
    "smollm": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), False),
    "gpt-2": (None, GPT2, False),
    "llama-bpe": (None, by(LLAMA3), True),
}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool_call>", "</tool_call>"]


def tiny(text: str) -> dict:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = by(QWEN2)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator([text], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get) + CONTROL + USER_DEFINED
    vocabulary = {token: place for place, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in model["merges"]]
    expected = {}
    for name, (normalizer, splitter, ignore_merges) in SPLITTINGS.items():
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = splitter
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in USER_DEFINED])
        tokenizer.add_special_tokens(CONTROL)
        expected[name] = tokenizer.encode(text).ids
        if name == "qwen2":
            tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    types = [1] * (len(tokens) - 5) + [3] * 3 + [4] * 2
    return dict(tokens=tokens, types=types, merges=[" ".join(merge) for merge in merges], expected=expected)


class Smollm(GPT2Tokenizer):
    """GPT-2's tokenizer after splitting off every digit, as SmolLM's `tokenizer.json` has it."""

    def _tokenize(self, text: str) -> list[str]:
        pieces = regex.split(r"(\p{N})", text)
        return [token for piece in pieces if piece for token in super(Smollm, self)._tokenize(piece)]


def shipped(path: str, kind: type, text: str) -> tuple[dict, str]:
    fields = GGUFReader(path).fields
    read = lambda key: fields["tokenizer." + key].contents()
    tokens, types = read("ggml.tokens"), read("ggml.token_type")
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        vocabulary.write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
        merges.write_text("#version: 0.2\n" + "\n".join(read("ggml.merges")) + "\n")
        added = [AddedToken(token, special=type == 3, normalized=False) for token, type in zip(tokens, types) if type in (3, 4)]
        tokenizer = kind(str(vocabulary), str(merges), unk_token=CONTROL[0], additional_special_tokens=[])
        tokenizer.add_tokens(added)
        return dict(ids=tokenizer(text)["input_ids"]), read("chat_template")


TOOLS = [
    dict(
        type="function",
        function=dict(
            name="write",
            description='Writes a file, e.g. "kernels/x.cu" — <all> of it & at once',
            parameters=dict(properties=dict(path=dict(type="string"), text=dict(type="string")), required=["path", "text"], type="object"),
        ),
    ),
    dict(type="function", function=dict(name="judge", description="Judges.", parameters=dict(properties={}, type="object"))),
]
CALL = dict(type="function", function=dict(name="write", arguments=dict(path="a.cu", text='int x = 1; // "é" <&>\n')))
CHATS = [
    dict(messages=[dict(role="user", content="Hello")], tools=[]),
    dict(messages=[dict(role="system", content="Be brief."), dict(role="user", content="Hi\n\n there "), dict(role="assistant", content="Yes?"), dict(role="user", content="{{ no }} {% template %}")], tools=[]),
    dict(
        messages=[
            dict(role="system", content="You write kernels."),
            dict(role="user", content="Go"),
            dict(role="assistant", content="", tool_calls=[CALL, CALL]),
            dict(role="tool", content="done"),
            dict(role="tool", content="done again"),
            dict(role="assistant", content="Now the other.", tool_calls=[CALL]),
            dict(role="tool", content="error: 'x' <undefined>"),
        ],
        tools=TOOLS,
    ),
]


def render(template: str, chat: dict) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token=CONTROL[0], eos_token=CONTROL[2])
    return tokenizer.apply_chat_template(chat["messages"], chat_template=template, tools=chat["tools"] or None, tokenize=False, add_generation_prompt=True)


def main() -> None:
    smollm_path, qwen_path = sys.argv[1:]
    FOLDER.mkdir(exist_ok=True)
    write = lambda name, value: (FOLDER / name).write_text(json.dumps(value) + "\n")
    text = corpus()
    (FOLDER / "corpus.txt").write_bytes(text.encode())
    write("tiny.json", tiny(text))
    smollm_tokens, smollm_template = shipped(smollm_path, Smollm, text)
    qwen_tokens, qwen_template = shipped(qwen_path, Qwen2Tokenizer, text)
    write("smollm2-135m.json", smollm_tokens)
    write("qwen2.5-coder-1.5b.json", qwen_tokens)
    templates = [dict(template=template, rendered=[render(template, chat) for chat in CHATS]) for template in (smollm_template, qwen_template)]
    write("chats.json", dict(chats=CHATS, templates=templates))


if __name__ == "__main__":
    main()
