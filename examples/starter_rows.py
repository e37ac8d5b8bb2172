"""The rows that the bundled GPT-2 and BERT are trained on: text, passkeys and passages to copy."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from hf_posenc.eval.texts import passkey
from hf_posenc.eval.texts.haystack import FILLER
from hf_posenc.eval.texts.measured_text import HELD_OUT, module_text

TRAINED_LENGTH = 256
VOCABULARY = 2048
SPECIAL = ("<|endoftext|>", "<pad>", "<mask>", "<cls>", "<sep>")
END, PAD, MASK, CLS, SEP = range(len(SPECIAL))
IGNORED = -100


class Rows:
    """Batches of 256-token rows of text; ``drill_share`` of the rows hold a passkey, 8 % a passage to copy."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str], *, masked: bool, drill_share: float, seed: int) -> None:
        self.masked = masked
        self.drill_share = drill_share
        self.seed = seed
        self.tokenizer = tokenizer
        ids: list[int] = []
        for encoded in tokenizer.encode_batch(texts):
            ids += [END, *encoded.ids]
        self.stream = torch.tensor(ids)
        print(f"{len(ids) / 1e6:.2f} M training tokens", flush=True)
        rng = random.Random(seed)
        self.drills = [torch.tensor(self.retrieval(rng)) for _ in range(6000)]

    def retrieval(self, rng: random.Random) -> list[int]:
        """A passkey prompt of random length and depth with its answer; 30 % have real text instead of filler."""
        room = rng.randint(100, TRAINED_LENGTH - 2)
        key = passkey.draw_key(rng)
        filler = FILLER if rng.random() < 0.7 else self.lines(rng)
        prompt = passkey.passkey(room, rng.random(), key, lambda text: len(self.tokenizer.encode(text).ids), filler)
        return self.tokenizer.encode(prompt + passkey.answer(key)).ids

    def lines(self, rng: random.Random) -> tuple[str, ...]:
        start = rng.randrange(len(self.stream) - 400)
        text = self.tokenizer.decode(self.stream[start : start + 400].tolist())
        return tuple(line.strip() or "#" for line in text.splitlines()) or FILLER

    def batches(self, size: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless ``(input_ids, labels)``, each ``[size, 256]``; batch ``n`` is the same in every run."""
        for number in range(first, sys.maxsize):
            rng = random.Random(f"{self.seed}-{number}")
            rows = [self.row(rng) for _ in range(size)]
            if self.masked:
                masked = [mask_row(row, rng) for row in rows]
                yield torch.stack([m[0] for m in masked]), torch.stack([m[1] for m in masked])
            else:
                batch = torch.stack(rows)
                yield batch, batch

    def row(self, rng: random.Random) -> Tensor:
        kind = rng.random()
        room = TRAINED_LENGTH - 2 if self.masked else TRAINED_LENGTH
        if kind < self.drill_share:
            row = self.placed(rng.choice(self.drills)[-room:], room, rng)
        elif kind < self.drill_share + 0.08:
            passage = self.window(rng, rng.randint(16, room // 2 - 2))
            between = self.window(rng, room - 2 * len(passage))
            row = torch.cat([passage, between, passage])
        else:
            row = self.window(rng, room)
        if not self.masked:
            return row
        return torch.cat([torch.tensor([CLS]), row, torch.tensor([SEP])])

    def placed(self, drill: Tensor, room: int, rng: random.Random) -> Tensor:
        """A drill between two pieces of text; for masked rows it is at the end, where `mask_row` expects the answer."""
        left = room - len(drill)
        before = left if self.masked else rng.randint(0, left)
        end = torch.tensor([END])
        return torch.cat(
            [
                self.window(rng, before - 1),
                end[:before],
                drill,
                end[: left - before],
                self.window(rng, left - before - 1),
            ]
        )

    def window(self, rng: random.Random, length: int) -> Tensor:
        if length <= 0:
            return torch.empty(0, dtype=torch.long)
        start = rng.randrange(len(self.stream) - length)
        return self.stream[start : start + length]


def mask_row(row: Tensor, rng: random.Random) -> tuple[Tensor, Tensor]:
    """Mask 20 % of the tokens; or, in half of the rows, 3 % and the last five, which are the answer in a drill."""
    labels = torch.full_like(row, IGNORED)
    mask_answer = rng.random() < 0.5
    is_masked = torch.tensor([rng.random() < (0.03 if mask_answer else 0.2) for _ in range(len(row))])
    if mask_answer:
        is_masked[-6:-1] = True
    is_masked &= (row != CLS) & (row != SEP)
    labels[is_masked] = row[is_masked]
    masked = row.clone()
    for place in is_masked.nonzero().flatten().tolist():
        chance = rng.random()
        masked[place] = MASK if chance < 0.9 else rng.randrange(len(SPECIAL), VOCABULARY)
    return masked, labels


def evaluation_rows(tokenizer: Tokenizer, *, masked: bool) -> tuple[Tensor, Tensor]:
    """64 rows of held-out text, the same in every run."""
    rng = random.Random(1)
    stream = torch.tensor([i for name in HELD_OUT for i in tokenizer.encode(module_text(name)).ids])
    size = TRAINED_LENGTH - 2 if masked else TRAINED_LENGTH
    starts = [rng.randrange(len(stream) - size) for _ in range(64)]
    rows = torch.stack([stream[s : s + size] for s in starts])
    if not masked:
        return rows, rows
    edges = torch.tensor([[CLS], [SEP]])
    pairs = [mask_row(torch.cat([edges[0], row, edges[1]]), rng) for row in rows]
    return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
