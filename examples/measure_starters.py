"""Measure the bundled models against a 5-gram on the same tokens, within and beyond their trained length of 256.

    python examples/measure_starters.py                 # a table of all three
    python examples/measure_starters.py --model llama=FOLDER

The baseline is an interpolated Kneser-Ney 5-gram trained on the same text (Chen, Goodman 1999, section 4.1.6, with one
discount per order, D = n1 / (n1 + 2 n2)).
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter, defaultdict

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.measured_text import HELD_OUT, TRAINING, module_text
from hf_posenc.starters.loading import NAMES, starter_path

LENGTH = 256
ROWS = 96
PASSKEYS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    folders = dict(pair.split("=", 1) for pair in arguments.model) or {name: str(starter_path(name)) for name in NAMES}
    for name, folder in folders.items():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        rows = held_out_rows(tokenizer, 2 * LENGTH)
        report = masked if name == "bert" else causal
        for what, value in {**five_gram(tokenizer, rows), **report(folder, rows)}.items():
            print(f"{name:6}{what:42}{value:8.3f}")


def five_gram(tokenizer, rows: Tensor) -> dict[str, float]:
    """Loss of the 5-gram on the tokens that the model is measured on, and the mean number of characters per token."""
    gram = KneserNey(training_tokens(tokenizer))
    scored = [gram.loss(row[: LENGTH // 2], row[LENGTH // 2 : LENGTH]) for row in rows.tolist()]
    characters = sum(len(tokenizer.decode(row[LENGTH // 2 : LENGTH])) for row in rows)
    return {
        "5-gram, last 128 of 256": sum(scored) / len(scored),
        "characters a token": characters / (len(rows) * LENGTH / 2),
    }


def held_out_rows(tokenizer, length: int) -> Tensor:
    """Rows of held-out text, ``[ROWS, length]``, the same in every run."""
    rng = random.Random(2)
    stream = torch.tensor(
        [i for name in HELD_OUT for i in tokenizer(module_text(name), add_special_tokens=False).input_ids]
    )
    starts = [rng.randrange(len(stream) - length) for _ in range(ROWS)]
    return torch.stack([stream[s : s + length] for s in starts])


def training_tokens(tokenizer) -> list[int]:
    texts = [text for name in TRAINING if (text := module_text(name))]
    return [i for text in texts for i in tokenizer(text, add_special_tokens=False).input_ids]


@torch.no_grad()
def causal(folder: str, rows: Tensor) -> dict[str, float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    figures = {"loss, last 128 of 256": suffix_loss(model, rows[:, :LENGTH], LENGTH // 2)}
    if model.config.model_type == "llama":
        figures["loss, last 128 of 512 (unpatched)"] = suffix_loss(model, rows, LENGTH // 2)
        figures["  the same tokens after 256"] = suffix_loss(model, rows[:, LENGTH:], LENGTH // 2)
    for length in (128, 192, 256):
        figures[f"passkey within {length}"] = passkey_accuracy(model, tokenizer, length)
    return figures


def suffix_loss(model, rows: Tensor, last: int) -> float:
    """Mean loss of the last ``last`` tokens of every row."""
    total = 0.0
    for chunk in rows.split(16):
        logits = model(chunk).logits[:, -last - 1 : -1].log_softmax(-1)
        total -= logits.gather(-1, chunk[:, -last:, None]).sum().item()
    return total / (len(rows) * last)


def passkey_accuracy(model, tokenizer, length: int) -> float:
    rng = random.Random(3)
    right = 0
    for trial in range(PASSKEYS):
        key = passkey.draw_key(rng)
        prompt = passkey.passkey(length, trial / (PASSKEYS - 1), key, lambda t: len(tokenizer(t).input_ids))
        ids = torch.tensor([tokenizer(prompt + passkey.answer(key)).input_ids])
        answer = len(tokenizer(passkey.answer(key)).input_ids)
        guessed = model(ids).logits[0, -answer - 1 : -1].argmax(-1)
        right += bool((guessed == ids[0, -answer:]).all())
    return right / PASSKEYS


@torch.no_grad()
def masked(folder: str, rows: Tensor) -> dict[str, float]:
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    generator = torch.Generator().manual_seed(4)
    edges = torch.tensor([[tokenizer.cls_token_id]]), torch.tensor([[tokenizer.sep_token_id]])
    text = torch.cat([edges[0].expand(ROWS, 1), rows[:, : LENGTH - 2], edges[1].expand(ROWS, 1)], dim=1)
    is_masked = torch.rand(text.shape, generator=generator) < 0.15
    is_masked[:, [0, -1]] = False
    logits = model(text.masked_fill(is_masked, tokenizer.mask_token_id)).logits[is_masked]
    figures = {
        "masked loss, 15 % of 256": torch.nn.functional.cross_entropy(logits, text[is_masked]).item(),
        "masked tokens recalled": (logits.argmax(-1) == text[is_masked]).float().mean().item(),
    }
    rng = random.Random(3)
    all_digits = single_digits = 0
    for trial in range(PASSKEYS):
        key = passkey.draw_key(rng)
        prompt = passkey.passkey(LENGTH, trial / (PASSKEYS - 1), key, lambda t: len(tokenizer(t).input_ids))
        ids = torch.tensor(tokenizer(prompt + passkey.answer(key)).input_ids)
        positions = torch.arange(len(ids) - 6, len(ids) - 1)  # the digits, before the closing token
        rows = ids.repeat(6, 1)  # rows 0 to 4 have one masked digit each, row 5 has five
        rows[torch.arange(5), positions] = rows[5, positions] = tokenizer.mask_token_id
        right = model(rows).logits[:, positions].argmax(-1) == ids[positions]
        single_digits += int(right[:5].diagonal().sum())
        all_digits += bool(right[5].all())
    return {
        **figures,
        "passkey digits, one masked, within 256": single_digits / (5 * PASSKEYS),
        "passkey, all digits masked, within 256": all_digits / PASSKEYS,
    }


class KneserNey:
    """Interpolated Kneser-Ney of order 5 over token ids."""

    def __init__(self, tokens: list[int], order: int = 5) -> None:
        self.order = order
        self.vocabulary = max(tokens) + 1
        highest = Counter(zip(*(tokens[i:] for i in range(order)), strict=False))
        self.counts = [highest]
        for _ in range(order - 1):  # a lower order counts the different tokens before an n-gram, not its occurrences
            self.counts.insert(0, Counter(gram[1:] for gram in self.counts[0]))
        self.totals, self.kinds, self.discounts = [], [], []
        for counts in self.counts:
            total, kinds = defaultdict(int), defaultdict(int)
            for gram, count in counts.items():
                total[gram[:-1]] += count
                kinds[gram[:-1]] += 1
            ones, twos = (sum(c == n for c in counts.values()) for n in (1, 2))
            self.totals.append(total)
            self.kinds.append(kinds)
            self.discounts.append(ones / (ones + 2 * twos))

    def probability(self, context: tuple[int, ...], token: int) -> float:
        p = 1 / self.vocabulary
        for n, counts in enumerate(self.counts):
            before = context[len(context) - n :] if n else ()
            total = self.totals[n].get(before, 0)
            if not total:
                break
            discount = self.discounts[n]
            discounted = max(counts.get((*before, token), 0) - discount, 0.0)
            p = (discounted + discount * self.kinds[n][before] * p) / total
        return p

    def loss(self, context: list[int], tokens: list[int]) -> float:
        """Mean loss of ``tokens`` after ``context``, nats/token."""
        text = [*context, *tokens]
        start = len(context)
        return -sum(
            math.log(self.probability(tuple(text[max(0, i - self.order + 1) : i]), text[i]))
            for i in range(start, len(text))
        ) / len(tokens)


if __name__ == "__main__":
    main()
