"""A tokenizer of bytes: nothing is fetched."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: number for number, letter in enumerate(["<pad>", "<|im_end|>", *alphabet])}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True) for word in ("<pad>", "<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>", clean_up_tokenization_spaces=False)
