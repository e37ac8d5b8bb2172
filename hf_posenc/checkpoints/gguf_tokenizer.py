"""Write the tokenizer of a model into a GGUF file: byte-level BPE with one of llama.cpp's pre-tokenizers.

llama.cpp has its pre-tokenizers in code, and a file names one of them. A tokenizer that splits texts differently cannot
be written. The patterns here are copied from the tokenizers' own files (GPT-2, SmolLM, Llama 3, Qwen 2).
"""

from __future__ import annotations

import json
import warnings
from typing import Any

from hf_posenc.errors import TokenizerLeftOut

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRE_TOKENIZERS = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    (CONTRACTIONS + r"|\p{N}{1,3}" + REST, "ByteLevel"): "llama-bpe",
    (CONTRACTIONS + r"|\p{N}" + REST, "ByteLevel"): "qwen2",
}
"""Maps the steps of a tokenizer before its merges, each a type or a pattern, to llama.cpp's name of them."""


def write_tokenizer(writer: Any, tokenizer: Any, vocabulary: int) -> None:
    """Write a fast tokenizer, padded to ``vocabulary`` tokens, or write that the file has none.

    Warns:
        TokenizerLeftOut: llama.cpp has no pre-tokenizer like this tokenizer's.
    """
    stated = json.loads(tokenizer.backend_tokenizer.to_str()) if getattr(tokenizer, "is_fast", False) else {}
    pre = PRE_TOKENIZERS.get(steps_of(stated))
    if tokenizer is not None and pre is None:
        warnings.warn(
            f"llama.cpp does not know the pre-tokenizer of this {type(tokenizer).__name__}, so the file has no "
            "tokenizer. Pass token ids to llama.cpp.",
            TokenizerLeftOut,
            stacklevel=3,
        )
    if pre is None:
        writer.add_tokenizer_model("none")
        return
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([names.get(number, f"[PAD{number}]") for number in range(vocabulary)])
    writer.add_token_types([type_of(number, names, tokenizer) for number in range(vocabulary)])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in stated["model"]["merges"]])
    for name in ("bos", "eos", "unk", "pad"):
        number = getattr(tokenizer, f"{name}_token_id")
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(
        tokenizer.bos_token_id is not None and tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    )
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def steps_of(stated: dict[str, Any]) -> tuple[str, ...]:
    """The steps of a tokenizer before its merges; empty unless it is a byte-level BPE without a normalizer."""
    if stated.get("model", {}).get("type") != "BPE" or stated.get("normalizer"):
        return ()
    first = stated.get("pre_tokenizer") or {}
    steps = first.get("pretokenizers", [first])
    return tuple(
        step["pattern"].get("Regex", "") if step["type"] == "Split" else step["type"]
        for step in steps
        if not (step["type"] == "Digits" and not step["individual_digits"])
    )


def type_of(number: int, names: dict[int, str], tokenizer: Any) -> int:
    """GGUF's type of a token: normal, control, user defined or unused."""
    import gguf

    if number not in names:
        return gguf.TokenType.UNUSED
    added = tokenizer.added_tokens_decoder.get(number)
    if added is None:
        return gguf.TokenType.NORMAL
    return gguf.TokenType.CONTROL if added.special else gguf.TokenType.USER_DEFINED
