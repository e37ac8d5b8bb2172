"""Hide eight numbers in a long text, read it once, and ask for each number: which schemes find distant text?

    python examples/hidden_numbers.py smollm2-135m --schemes unpatched,yarn,rerope --lengths 8192,16384 --text Wells.txt

The text is read once into a KV cache. Each question is appended, answered, and cropped again, so eight answers cost one
prefill. A number counts as found if greedy decoding would write all of its digits. Every number is of a different kind
("The phone number is 52731"), because a small model confuses numbers of the same kind at any length.

Results are stored in ``--out``; the same command resumes after an interruption.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hf_posenc import enable_auto, patch_model, unpatch_model
from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.eval.texts.haystack import insert_needles, most_units, sentences_of
from hf_posenc.schemes.entry import entries_of

KINDS = (
    "pass key", "phone number", "price of the house", "number of visitors", "postal code", "engine number",
    "population of the town", "weight of the ship",
)  # fmt: skip
NEEDLE = "The {kind} is {number}. Remember it. {number} is the {kind}."
QUESTION = "\nWhat is the {kind}? The {kind} is"
ROOM = 64
"""Tokens kept free for a question and its answer."""


def main() -> None:
    """Measure every scheme on every text at every length; write one JSON line per hidden number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder of transformers, or a name on the Hub")
    parser.add_argument("--schemes", default="unpatched,yarn", help="such as yarn,dynamic_yarn:granularity=2048")
    parser.add_argument("--lengths", default="8192,16384", help="tokens; the longest is the target length")
    parser.add_argument("--text", type=Path, action="append", required=True, help="filler; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("hidden_numbers.jsonl"), help="file of the results")
    arguments = parser.parse_args()
    enable_auto()  # a patched checkpoint keeps its scheme under "unpatched"
    model = AutoModelForCausalLM.from_pretrained(arguments.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    lengths = [int(length) for length in arguments.lengths.split(",")]
    out: Path = arguments.out
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["scheme"], row["length"], row["document"]) for row in rows}
    for entry in entries_of(arguments.schemes):
        if entry.scheme is not None:
            patch_model(model, entry.scheme, target_length=max(lengths), **entry.options)
        for length, path in product(lengths, arguments.text):
            if (entry.label, length, path.name) in done:
                continue
            started = time.perf_counter()
            hits = answers(model, tokenizer, sentences_of([path.read_text(encoding="utf-8")]), length)
            seconds = time.perf_counter() - started
            share = fmean(hits.values())
            print(f"{entry.label} at {length}, {path.name}: {share:.0%} found, {seconds:.0f} s", flush=True)
            cell = {"scheme": entry.label, "task": "hidden_numbers", "document": path.name, "length": length}
            rows += [cell | {"depth": depth, "metric": "acc", "value": float(hit)} for depth, hit in hits.items()]
            write_bytes(out, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        if entry.scheme is not None:
            unpatch_model(model)


@torch.no_grad()
def answers(model: Any, tokenizer: Any, sentences: tuple[str, ...], length: int) -> dict[float, bool]:
    """Whether the model finds each number, by depth: the share of the text before the number."""
    rng = random.Random(0)
    numbers = [str(rng.randint(10_000, 99_999)) for _ in KINDS]
    depths = [(place + 0.5) / len(KINDS) for place in range(len(KINDS))]
    needles = [NEEDLE.format(kind=kind, number=number) for kind, number in zip(KINDS, numbers, strict=True)]

    def text(units: int) -> Tensor:
        return tokens(tokenizer, " ".join(insert_needles(zip(depths, needles, strict=True), sentences[:units])))

    document = text(most_units(lambda units: text(units).shape[1], length - ROOM, "hidden numbers"))
    cache = DynamicCache(config=model.config)
    model(document, None, None, cache, logits_to_keep=1)  # transformers 5.24 renamed the keyword of the cache
    hits = {}
    for kind, number, depth in zip(KINDS, numbers, depths, strict=True):
        question, answer = tokens(tokenizer, QUESTION.format(kind=kind)), tokens(tokenizer, f" {number}")
        both = torch.cat([question, answer], dim=1)
        logits = model(both, None, None, cache).logits[0, question.shape[1] - 1 : -1]
        cache.crop(-both.shape[1])
        hits[depth] = bool((logits.argmax(-1) == answer[0]).all())
    return hits


def tokens(tokenizer: Any, text: str) -> Tensor:
    """Tokens of a text without special tokens, ``[1, length]``."""
    ids: Tensor = tokenizer(text, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids
    return ids


if __name__ == "__main__":
    main()
