"""Retrieval in documents longer than an encoder's position table: patched, truncated, and cut in chunks.

    python examples/real_model.py --model minilm models/minilm-l6
    python examples/long_retrieval.py --model models/minilm-l6 --text ENG19090_Wells.txt ENG18480_Thackeray.txt \\
        --train ENG18570_Bronte.txt ENG18900_Doyle.txt ENG19020_Nesbit.txt ENG19080_Chesterton.txt \\
        --out results/retrieval

A document is one vector: the mean of its last hidden states, as in sentence-transformers for this model. Documents are
ranked by their cosine with the query. long_retrieval_texts.py makes documents and queries. Every scheme is patched with
the same factor for all lengths. Three ways need no patch:

    truncated       one vector of the first 512 tokens
    chunks: mean    one vector: the mean over chunks of 512 tokens, weighted by their tokens
    chunks: best    one vector for each chunk; the nearest counts

A scheme followed by ``tuned`` is trained to imitate the unpatched model first, see long_retrieval_tuning.py.
OUT/ranks.jsonl has a line for each way, task and length, with a list of ranks for each document, one for each query.
Interrupted? Add --resume; you may then add further ways.
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
"""Cosines that differ by less are counted as equal."""
Cell = tuple[str, str, int]


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="novels to search in")
    parser.add_argument("--train", type=Path, nargs="+", default=[], help="other novels, to tune on")
    parser.add_argument("--ways", nargs="+", default=WAYS, help=f"any of {', '.join(WAYS)}, or another scheme")
    parser.add_argument("--documents", type=int, default=16, help="documents per task (default: 16)")
    parser.add_argument("--factor", type=float, default=4.0, help="factor of every scheme (default: 4)")
    parser.add_argument("--steps", type=int, default=40, help="tuning steps (default: 40)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the ranks")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    run_command(run, parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    """Measure every way that the folder lacks; each result is written as soon as it is known."""
    claim_folder(arguments.out, arguments)
    file = arguments.out / "ranks.jsonl"
    ranks = read_ranks(file) if file.exists() else {}
    novels = [sentences_of([whole_text(path)]) for path in arguments.text]
    cells = [(way, task, length) for way in arguments.ways for task in TASKS for length in LENGTHS]
    unpatched = Encoder(loaded(arguments.model), AutoTokenizer.from_pretrained(arguments.model), LENGTHS[0])
    for way in arguments.ways:
        missing = [cell for cell in cells if cell[0] == way and cell not in ranks]
        encoder = patched(way, unpatched, arguments) if missing and way not in UNPATCHED_WAYS else unpatched
        for cell in missing:
            _, task, length = cell
            collection = documents(task, arguments.documents, length, unpatched.tokens, novels)
            ranks[cell] = ranks_of(encoder, way, collection)
            write_ranks(file, ranks)
            print(f"{len(ranks)} of {len(cells)}: {way}, {task}, {length}: {scores(ranks[cell])}", flush=True)


def loaded(folder: Path) -> Any:
    """Load the unpatched model."""
    return AutoModel.from_pretrained(folder).eval()


def patched(way: str, unpatched: Encoder, arguments: argparse.Namespace) -> Encoder:
    """Patch a new copy of the model with the scheme of a way, and tune it if the way says so."""
    scheme, _, tuning = way.partition(" ")
    model = patch_model(loaded(arguments.model), scheme, factor=arguments.factor)
    if tuning:
        texts, state = [whole_text(path) for path in arguments.train], arguments.out / f"{scheme}.safetensors"
        tuned(model, unpatched.model, unpatched.tokenizer, texts, arguments.steps, state)
    return Encoder(model, unpatched.tokenizer, LENGTHS[-1])


class Encoder:
    """Maps texts to unit vectors.

    Args:
        model: an encoder, patched or not.
        tokenizer: tokenizer of the model.
        most: most tokens that are read at once.
    """

    def __init__(self, model: Any, tokenizer: Any, most: int) -> None:
        self.model, self.tokenizer, self.most = model, tokenizer, most
        self.cache: dict[tuple[int, ...], Tensor] = {}

    def tokens(self, text: str) -> int:
        """Number of tokens, including the special tokens at both ends."""
        return len(self.tokenizer(text, verbose=False)["input_ids"])

    def vectors(self, text: str, way: str) -> Tensor:
        """One vector of a text, or one for each chunk, ``[vector, width]``."""
        rows = self.tokenizer(text, truncation=True, max_length=self.most, return_overflowing_tokens=True)["input_ids"]
        means = torch.stack([self.mean(tuple(row)) for row in (rows if way in CHUNKED else rows[:1])])
        if way == CHUNKED[0]:
            means = (means * torch.tensor([[len(row)] for row in rows])).sum(0, keepdim=True)
        return normalize(means, dim=-1)

    @torch.no_grad()
    def mean(self, row: tuple[int, ...]) -> Tensor:
        """Mean over the last hidden states of some tokens, ``[width]``; cached."""
        if row not in self.cache:
            self.cache[row] = self.model(torch.tensor([row])).last_hidden_state[0].mean(0)
        return self.cache[row]


def ranks_of(encoder: Encoder, way: str, collection: Sequence[Document]) -> list[list[int]]:
    """Rank of each document among all, for each of its queries."""
    encoded = [encoder.vectors(document.text, way) for document in collection]

    def rank_for(own: int, query: str) -> int:
        vector = encoder.vectors(query, way)[0]
        return rank([float((vectors @ vector).max()) for vectors in encoded], own)

    return [[rank_for(own, query) for query in document.queries] for own, document in enumerate(collection)]


def rank(similarities: Sequence[float], own: int) -> int:
    """Rank of the document ``own``; equally similar documents come before it."""
    return sum(similarity >= similarities[own] - ROUNDING for similarity in similarities)


def scores(ranks: Sequence[Sequence[int]]) -> str:
    """Format recall@1 and nDCG@10 over all queries."""
    flat = [rank for of_document in ranks for rank in of_document]
    return f"recall@1 {100 * fmean(rank == 1 for rank in flat):.0f} %, nDCG@10 {fmean(map(ndcg_of, flat)):.2f}"


def ndcg_of(rank: int) -> float:
    """NDCG@10 of a query with one relevant document, which has this rank."""
    return 1 / log2(1 + rank) if rank <= 10 else 0.0


def read_ranks(file: Path) -> dict[Cell, list[list[int]]]:
    """Read the ranks of a file by way, task and length."""
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(row["way"], row["task"], row["length"]): row["ranks"] for row in rows}


def write_ranks(file: Path, by_cell: dict[Cell, list[list[int]]]) -> None:
    """Write the ranks, one line for each way, task and length."""
    rows = [dict(zip(("way", "task", "length"), cell, strict=True), ranks=ranks) for cell, ranks in by_cell.items()]
    write_bytes(file, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


if __name__ == "__main__":
    main()
