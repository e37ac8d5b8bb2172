"""Extend BERT beyond its position table: patch it, then train it briefly on masked tokens.

    python examples/extend_bert.py --output runs/bert                      # the bundled starter BERT, minutes on a CPU
    python examples/extend_bert.py --output runs/bert --seeds 0 1 2        # mean and spread
    python examples/extend_bert.py --scheme alibi --learning-rate 1e-3 --output runs/bert-alibi
    python examples/extend_bert.py --model google-bert/bert-base-uncased --text book.txt --held-out other.txt \\
        --steps 500 --batch 8 --learning-rate 3e-5 --bf16 --output runs/bert-base

``hierarchical``, the default, keeps the table and indexes it by the two digits of a position in base n (scheme
``learned_hier``). All layers but the middle one attend to a window as wide as the table, as in pre-training; the
middle one attends to the whole text, with attention that sharpens with its length (``logn``). ``tiled`` does the same
with a repeated table. Any other scheme of `hf-posenc list` works too: ``alibi``, ``rope`` and ``t5`` replace the table,
and attention then has to be learned again.

The script measures the share of masked tokens that are recalled, for the same tokens at every length: from their
neighbourhood (posenc_mlm), and with a copy of their passage at the far end of the text (posenc_mlm_recall). The
baseline is the unpatched model at its trained length. Each seed has a folder with checkpoints and the finished model.
Interrupted? Add --resume. To load a model:

    hf_posenc.from_pretrained("runs/bert/seed-0")

To use other rows, another schedule or another report, copy this script and common.py, and change them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import claim_folder, doubled_lengths, load_model, mean_and_deviation, progress_bar, read_texts, run_command
from torch import Tensor
from torch.utils.data import Dataset

import hf_posenc
from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.eval.evaluation import evaluate
from hf_posenc.eval.lm.measurable import is_masked
from hf_posenc.training import METHODS, Training, finetune

TASKS = ("posenc_mlm", "posenc_mlm_recall")
PASSAGE = (16, 96)  # shortest and longest passage that a row contains twice, tokens
Table = tuple[str, dict[str, Any]]
HIERARCHICAL: Table = ("learned_hier", {"alpha": 0.1})  # the smaller alpha, the less the first layer has to learn
TILED: Table = ("learned_interp", {"mode": "tile"})
Recall = dict[str, dict[int, float]]


def main() -> None:
    """Parse the command line and run."""
    run_command(run, parse())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert", help="the starter, a folder or a Hub name (default: bert)")
    parser.add_argument(
        "--scheme", default="hierarchical", help="hierarchical, tiled, or any of `hf-posenc list` (default: the first)"
    )
    parser.add_argument("--factor", type=float, default=4.0, help="target length / trained length (default: 4)")
    parser.add_argument("--length", type=int, help="tokens per training row (default: the target length)")
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps (default: 300)")
    parser.add_argument("--batch", type=int, default=2, help="rows per step (default: 2)")
    parser.add_argument(
        "--learning-rate", type=float, default=3e-4, help="peak (default: 3e-4; use 1e-3 if the table is replaced)"
    )
    parser.add_argument("--method", choices=sorted(METHODS), default="full", help="what is trained (default: full)")
    parser.add_argument(
        "--copies", type=float, default=0.5, help="share of rows with one passage at both ends (default: 0.5)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run for each seed (default: 0)")
    parser.add_argument(
        "--text", nargs="+", help="training texts: files, folders or hub:NAME (default: standard library)"
    )
    parser.add_argument("--held-out", nargs="+", help="texts to measure on (default: other modules)")
    parser.add_argument("--samples", type=int, default=64, help="windows of held-out text at each length (default: 64)")
    parser.add_argument("--output", type=Path, required=True, help="folder of models and results")
    parser.add_argument("--resume", action="store_true", help="resume the run in --output")
    parser.add_argument("--save-every", type=int, default=60, help="steps between checkpoints (default: 60)")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Measure the unpatched model, extend it once per seed, and report."""
    claim_folder(arguments.output, arguments)
    model, tokenizer = load(arguments.model)
    length = model.config.max_position_embeddings
    target = round(arguments.factor * length)
    measured = {"unpatched": recall(model, tokenizer, [length], target, arguments)}
    print(f"unpatched, at {length} tokens: {in_words(measured['unpatched'])}")
    seconds = {}
    for seed in arguments.seeds:
        measured[f"seed {seed}"], seconds[f"seed {seed}"] = one_seed(seed, length, target, arguments)
        print(f"seed {seed}: {in_words(measured[f'seed {seed}'])}")
    report(arguments, length, target, measured, seconds)


def load(name: str) -> tuple[Any, Any]:
    """Load a masked language model and its tokenizer."""
    model, tokenizer = load_model(name)
    if not is_masked(model):
        raise SystemExit(f"{name} is a {type(model).__name__}, which predicts no masked tokens. Name a …ForMaskedLM.")
    return model, tokenizer


def patched(model: Any, scheme: str, factor: float) -> Any:
    """Patch the model; a scheme that keeps the table gets windows in all layers but the middle one."""
    table = {"hierarchical": HIERARCHICAL, "tiled": TILED}.get(scheme)
    if table is None:
        return hf_posenc.patch_model(model, scheme, factor=factor)
    window = ("window", {"size": model.config.max_position_embeddings // 2})  # tokens to each side
    middle = str(model.config.num_hidden_layers // 2)
    return hf_posenc.patch_model(model, [table, window], factor=factor, layers={middle: [table, "logn"]})


def one_seed(seed: int, length: int, target: int, arguments: argparse.Namespace) -> tuple[Recall, float]:
    """Patch, train and measure the model; a finished seed is read from its folder.

    Returns:
        The recall by task and length, and the processor time of training in seconds.
    """
    folder = arguments.output / f"seed-{seed}"
    done = folder / "recall.json"
    if done.exists():
        stored = json.loads(done.read_text(encoding="utf-8"))
        by_task = {task: {int(n): v for n, v in line.items()} for task, line in stored["recall"].items()}
        return by_task, stored["seconds"]
    model, tokenizer = load(arguments.model)
    torch.manual_seed(seed)  # for schemes that draw parameters at random
    print(hf_posenc.describe(patched(model, arguments.scheme, arguments.factor)))
    training = Training(
        length=arguments.length or target, steps=arguments.steps, method=arguments.method, batch=arguments.batch,
        learning_rate=arguments.learning_rate, seed=seed, save_every=arguments.save_every, bf16=arguments.bf16,
        gradient_checkpointing=arguments.gradient_checkpointing,
    )  # fmt: skip
    texts = [document.content for document in read_texts(arguments.text).documents()]
    rows = Rows(tokenizer, texts, training.length, training.steps * training.batch, arguments.copies, seed)
    started = time.process_time()
    with progress_bar() as progress:
        task = progress.add_task(f"seed {seed}", total=1.0, loss="")
        tuned = finetune(
            model, tokenizer, rows, training, out=folder, resume=arguments.resume,
            progress=lambda share, loss: progress.update(task, completed=share, loss=f"loss {loss:.3f}"),
        )  # fmt: skip
    seconds = time.process_time() - started
    lengths = doubled_lengths(length, target)
    by_task = recall(tuned.model, tokenizer, lengths, target, arguments)
    write_json(done, {"recall": by_task, "seconds": seconds})
    return by_task, seconds


class Rows(Dataset):
    """Training rows: pieces of text between special tokens; row ``n`` is the same in every run with a seed.

    In a share of the rows, the last passage also stands at the front, so that its masked tokens can be looked up there.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str], length: int, count: int, copies: float, seed: int) -> None:
        encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        self.tokens = torch.tensor([token for text in encoded for token in text])
        if len(self.tokens) < length:
            raise SystemExit(f"The texts have {len(self.tokens)} tokens, less than a row of {length}. Give more text.")
        self.edges = torch.tensor([tokenizer.cls_token_id]), torch.tensor([tokenizer.sep_token_id])
        self.room, self.count, self.copies, self.seed = length - 2, count, copies, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw = random.Random(f"{self.seed}-{index}")
        passage = self.piece(0, draw)
        if draw.random() < self.copies:
            passage = self.piece(min(draw.randint(*PASSAGE), self.room // 2), draw)
        between = self.piece(self.room - 2 * len(passage), draw)
        return {"input_ids": torch.cat([self.edges[0], passage, between, passage, self.edges[1]])}

    def piece(self, length: int, draw: random.Random) -> Tensor:
        """``length`` tokens from a random place of the text."""
        start = draw.randrange(len(self.tokens) - length + 1)
        return self.tokens[start : start + length]


def recall(model: Any, tokenizer: Any, lengths: list[int], target: int, arguments: argparse.Namespace) -> Recall:
    """Share of masked tokens that are recalled, by task and length; the masks do not depend on ``lengths``."""
    rows = evaluate(
        model, tokenizer, tasks=TASKS, lengths=lengths, longest=target, samples=arguments.samples,
        text=arguments.held_out,
    ).rows  # fmt: skip
    return {
        task: {row.length: row.value for row in rows if (row.task, row.metric) == (task, "recall")} for task in TASKS
    }


def report(
    arguments: argparse.Namespace, length: int, target: int, measured: dict[str, Recall], seconds: dict[str, float]
) -> None:
    """Print a table of mean and deviation over seeds; write the table and all numbers."""
    seeds = [name for name in measured if name != "unpatched"]
    lines = [
        f"{arguments.scheme}, {arguments.steps} steps of {arguments.batch} × {arguments.length or target} tokens, "
        f"{mean(seconds.values()):.0f} s of processor time per seed; masked tokens recalled, mean ± deviation of "
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)}",
        "",
        f"| | unpatched, {length} | " + " | ".join(f"{n}" for n in measured[seeds[0]][TASKS[0]]) + " |",
        "|---|---|" + "---|" * len(measured[seeds[0]][TASKS[0]]),
    ]
    for task in TASKS:
        before = measured["unpatched"][task][length]
        columns = [[measured[seed][task][n] for seed in seeds] for n in measured[seeds[0]][task]]
        lines.append(f"| {task} | {before:.3f} | {' | '.join(map(mean_and_deviation, columns))} |")
    print("\n" + "\n".join(lines))
    for task in TASKS:
        before, after = measured["unpatched"][task][length], mean(measured[seed][task][target] for seed in seeds)
        verdict = "at least as good" if after >= before else "not reached"
        print(f"{task}: {after:.3f} at {target}, {before:.3f} at {length} unpatched: {verdict}")
    write_json(arguments.output / "results.json", {"recall": measured, "seconds": seconds})
    write_bytes(arguments.output / "results.md", ("\n".join(lines) + "\n").encode())


def in_words(by_task: Recall) -> str:
    """Format recall in one line."""
    return "; ".join(f"{task} " + ", ".join(f"{n}: {v:.3f}" for n, v in line.items()) for task, line in by_task.items())


if __name__ == "__main__":
    main()
