"""Retrieval in documents longer than an encoder's position table: patched, truncated, and cut in chunks.

    python examples/real_model.py --model minilm models/minilm-l6
    python examples/long_retrieval.py --model models/minilm-l6 --text ENG19090_Wells.txt ENG18480_Thackeray.txt \\
        --train ENG18570_Bronte.txt ENG18900_Doyle.txt ENG19020_Nesbit.txt ENG19080_Chesterton.txt \\
        --out results/retrieval

A document is one vector, the mean of its last hidden states, as sentence-transformers makes it for this model. The
document nearest to a query by cosine is first. long_retrieval_texts.py says what is asked. Every scheme is patched
with one factor for all lengths. Three ways need no patch:

    truncated       the first 512 tokens
    chunks: mean    chunks of 512 tokens, each counted by its tokens: one vector
    chunks: best    the nearest of those chunks: a vector for each

A scheme with ``tuned`` behind it imitates the unpatched model first, see long_retrieval_tuning.py. OUT/ranks.jsonl has
a line for each way, task and length, in it a list for each document, in that the rank for each query. Interrupted? Add
--resume. More ways may be named then.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from common import claim_folder, run_command
from long_retrieval_texts import TASKS, Document, documents
from long_retrieval_tuning import tuned
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from hf_posenc import patch_model
from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.eval.texts.haystack import sentences_of
from hf_posenc.texts.files import whole_text

LENGTHS = (512, 1024, 2048)
CHUNKED = ("chunks: mean", "chunks: best")
UNPATCHED_WAYS = ("truncated", *CHUNKED)
WAYS = (*UNPATCHED_WAYS, "learned_interp", "learned_hier", "rope tuned", "alibi", "none")
ROUNDING = 1e-6
"""Cosines that differ by less are equal: one text beside others in a batch."""
Cell = tuple[str, str, int]


def main() -> None:
    """Measure what is missing in the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="novels that are searched")
    parser.add_argument("--train", type=Path, nargs="+", default=[], help="other novels, for ways that are tuned")
    parser.add_argument("--ways", nargs="+", default=WAYS, help=f"of {', '.join(WAYS)}, or another scheme")
    parser.add_argument("--documents", type=int, default=16, help="of each task (default: 16)")
    parser.add_argument("--factor", type=float, default=4.0, help="of every scheme (default: 4)")
    parser.add_argument("--steps", type=int, default=40, help="of tuning (default: 40)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the ranks")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    run_command(run, parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    """Measure way by way; a line is written as soon as it is known."""
    claim_folder(arguments.out, arguments)
    file = arguments.out / "ranks.jsonl"
    found = read_ranks(file) if file.exists() else {}
    novels = [sentences_of([whole_text(path)]) for path in arguments.text]
    cells = [(way, task, length) for way in arguments.ways for task in TASKS for length in LENGTHS]
    unpatched = Encoder(loaded(arguments.model), AutoTokenizer.from_pretrained(arguments.model), LENGTHS[0])
    for way in arguments.ways:
        missing = [cell for cell in cells if cell[0] == way and cell not in found]
        encoder = patched(way, unpatched, arguments) if missing and way not in UNPATCHED_WAYS else unpatched
        for cell in missing:
            _, task, length = cell
            asked = documents(task, arguments.documents, length, unpatched.tokens, novels)
            found[cell] = ranks_of(encoder, way, asked)
            write_ranks(file, found)
            print(f"{len(found)} of {len(cells)}: {way}, {task}, {length}: {scores(found[cell])}", flush=True)


def loaded(folder: Path) -> Any:
    """The unpatched model."""
    return AutoModel.from_pretrained(folder).eval()


def patched(way: str, unpatched: Encoder, arguments: argparse.Namespace) -> Encoder:
    """The model under the scheme of a way, tuned where it says so."""
    scheme, _, tuning = way.partition(" ")
    model = patch_model(loaded(arguments.model), scheme, factor=arguments.factor)
    if tuning:
        texts, state = [whole_text(path) for path in arguments.train], arguments.out / f"{scheme}.safetensors"
        tuned(model, unpatched.model, unpatched.tokenizer, texts, arguments.steps, state)
    return Encoder(model, unpatched.tokenizer, LENGTHS[-1])


class Encoder:
    """Texts to unit vectors.

    Args:
        model: an encoder, patched or not.
        tokenizer: its own.
        most: tokens that are read at once.
    """

    def __init__(self, model: Any, tokenizer: Any, most: int) -> None:
        self.model, self.tokenizer, self.most = model, tokenizer, most
        self.known: dict[tuple[int, ...], Tensor] = {}

    def tokens(self, text: str) -> int:
        """Number of tokens, those at both ends among them."""
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def vectors(self, text: str, way: str) -> Tensor:
        """One vector, or one for each chunk: ``[vector, width]``."""
        rows = self.tokenizer(text, truncation=True, max_length=self.most, return_overflowing_tokens=True)["input_ids"]
        means = torch.stack([self.mean(tuple(row)) for row in (rows if way in CHUNKED else rows[:1])])
        if way == CHUNKED[0]:
            means = (means * torch.tensor([[len(row)] for row in rows])).sum(0, keepdim=True)
        return normalize(means, dim=-1)

    @torch.no_grad()
    def mean(self, row: tuple[int, ...]) -> Tensor:
        """Mean over the last hidden states of some tokens."""
        if row not in self.known:
            self.known[row] = self.model(torch.tensor([row])).last_hidden_state[0].mean(0)
        return self.known[row]


def ranks_of(encoder: Encoder, way: str, asked: Sequence[Document]) -> list[list[int]]:
    """The rank of the right document for each of its queries, among all."""
    read = [encoder.vectors(one.text, way) for one in asked]

    def found_at(own: int, query: str) -> int:
        vector = encoder.vectors(query, way)[0]
        return rank([float((vectors @ vector).max()) for vectors in read], own)

    return [[found_at(own, query) for query in one.queries] for own, one in enumerate(asked)]


def rank(similarities: Sequence[float], own: int) -> int:
    """The rank of one document; those that are as similar come before it."""
    return sum(one >= similarities[own] - ROUNDING for one in similarities)


def scores(found: Sequence[Sequence[int]]) -> str:
    """Recall@1 and nDCG@10, in words."""
    ranks = [one for of_document in found for one in of_document]
    return f"recall@1 {100 * fmean(one == 1 for one in ranks):.0f} %, nDCG@10 {fmean(map(ndcg_of, ranks)):.2f}"


def ndcg_of(found_at: int) -> float:
    """NDCG@10 where one document is relevant."""
    return 1 / log2(1 + found_at) if found_at <= 10 else 0.0


def read_ranks(file: Path) -> dict[Cell, list[list[int]]]:
    """The ranks in a file, by way, task and length."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(row["way"], row["task"], row["length"]): row["ranks"] for row in rows}


def write_ranks(file: Path, found: dict[Cell, list[list[int]]]) -> None:
    """Write them, a line for each way, task and length."""
    rows = [dict(zip(("way", "task", "length"), cell, strict=True), ranks=ranks) for cell, ranks in found.items()]
    write_bytes(file, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


if __name__ == "__main__":
    main()
