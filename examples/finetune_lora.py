"""Extend a model's context: patch it with a scheme, train it briefly with LoRA, measure on the way.

    python examples/finetune_lora.py --output runs/lora                   # the bundled starter Llama, minutes on a CPU
    python examples/finetune_lora.py --seeds 0 1 2 --output runs/lora3                # with mean and spread over seeds
    python examples/finetune_lora.py --model HuggingFaceTB/SmolLM2-135M --scheme yarn --factor 4 --text book.txt \\
        --held-out other.txt --steps 200 --learning-rate 2e-4 --gradient-checkpointing --bf16 --output runs/smol

Norms and embeddings are trained together with the LoRA matrices. The script measures the loss of the same last tokens
of held-out text after 1×, 2×, 4× … the trained length: unpatched, patched, and trained. Training on similar text lowers
the loss at every length, so the last column is the trained model's loss minus its own loss at 1×. Each seed has a
folder with checkpoints, the loss curve and the finished adapter with its scheme. The folder above has results.md,
results.json and curve.png. Interrupted? Add --resume. To load an adapter:

    hf_posenc.from_pretrained(MODEL, peft_adapter="runs/lora/seed-0")
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from common import doubled_lengths, load_model, progress_bar, read_texts, run_command

import hf_posenc
from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.core.student_t import mean_interval
from hf_posenc.errors import MissingPackage
from hf_posenc.eval.texts.measured_text import HELD_OUT
from hf_posenc.texts import TextSource
from hf_posenc.training import (
    METHODS,
    LossPoint,
    Training,
    finetune,
    lengths_of,
)
from hf_posenc.training.corpus import tokenise
from hf_posenc.training.dataset import held_out_windows
from hf_posenc.training.loss_curve import curve_plot

WINDOWS = 32  # of held-out text, at each length

Curve = Sequence[LossPoint]


def main() -> None:
    """Parse the command line and run."""
    run_command(run, parser().parse_args())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="llama", help="a starter's name, a folder or a Hub name (default: %(default)s)")
    add("--scheme", default="dca", help="see `hf-posenc list` (default: %(default)s)")
    add("--factor", type=float, default=8.0, help="target length / trained length (default: %(default)s)")
    add("--length", type=int, help="tokens per training row (default: the target length)")
    add("--steps", type=int, default=40, help="optimiser steps (default: %(default)s)")
    add("--batch", type=int, default=1, help="rows per step (default: %(default)s)")
    add("--method", choices=sorted(METHODS), default="lora", help="what is trained (default: %(default)s)")
    add("--learning-rate", type=float, default=1e-3, help="peak; lower for large models (default: %(default)s)")
    add("--rank", type=int, default=16, help="rank of the LoRA matrices (default: %(default)s)")
    add("--seeds", type=int, nargs="+", default=[0], help="one run for each seed (default: 0)")
    add("--text", nargs="+", help="training texts: files, folders, hub:NAME:SPLIT (default: standard library sources)")
    add("--held-out", nargs="+", help="texts to measure on (default: other standard library sources)")
    add("--output", type=Path, required=True, help="folder for adapters and results")
    add("--resume", action="store_true", help="resume the run in --output")
    add("--save-every", type=int, default=20, help="steps between checkpoints (default: %(default)s)")
    add("--eval-every", type=int, default=10, help="steps between measurements (default: %(default)s)")
    add("--gradient-checkpointing", action="store_true", help="less memory, more time")
    add("--bf16", action="store_true", help="compute in bfloat16")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Measure the unpatched model, train one adapter per seed, and report."""
    model, tokenizer = load_model(arguments.model)
    hf_posenc.patch_model(model, arguments.scheme, factor=arguments.factor)
    lengths = doubled_lengths(*lengths_of(model))
    hf_posenc.unpatch_model(model)
    unpatched = losses(model, tokenizer, read_texts(arguments.held_out, HELD_OUT), lengths)
    report(arguments, unpatched, [one_seed(seed, lengths, arguments) for seed in arguments.seeds])


@torch.no_grad()
def losses(model: Any, tokenizer: Any, texts: TextSource, lengths: Sequence[int]) -> dict[int, float]:
    """Loss in nats/token by length, on the windows that training measures too."""
    windows = held_out_windows(tokenise(tokenizer, texts.documents()), lengths, count=WINDOWS)
    by_length = {}
    # A model with a position table cannot read beyond its trained length.
    for length in lengths if hasattr(model.config, "rope_parameters") else lengths[:1]:
        rows = ({k: v[None].to(model.device) for k, v in windows[str(length)][n].items()} for n in range(WINDOWS))
        by_length[length] = mean(model(**row).loss.item() for row in rows)
    return by_length


def one_seed(seed: int, lengths: Sequence[int], arguments: argparse.Namespace) -> Curve:
    """Patch the model, train it, and return the loss curve."""
    model, tokenizer = load_model(arguments.model)
    torch.manual_seed(seed)  # for schemes that draw parameters at random
    hf_posenc.patch_model(model, arguments.scheme, factor=arguments.factor)
    training = Training(
        length=arguments.length or max(lengths), steps=arguments.steps, method=arguments.method, batch=arguments.batch,
        learning_rate=arguments.learning_rate, rank=arguments.rank, seed=seed, bf16=arguments.bf16,
        gradient_checkpointing=arguments.gradient_checkpointing, save_every=arguments.save_every,
        eval_every=arguments.eval_every, eval_lengths=tuple(lengths), eval_windows=WINDOWS,
    )  # fmt: skip
    with progress_bar() as progress:
        task = progress.add_task(f"seed {seed}", total=1.0, loss="")
        return finetune(
            model, tokenizer, read_texts(arguments.text), training, held_out=read_texts(arguments.held_out, HELD_OUT),
            out=arguments.output / f"seed-{seed}", resume=arguments.resume,
            progress=lambda share, loss: progress.update(task, completed=share, loss=f"loss {loss:.3f}"),
        ).curve  # fmt: skip


def report(arguments: argparse.Namespace, unpatched: dict[int, float], curves: Sequence[Curve]) -> None:
    """Print a table of mean and deviation over seeds; write the table, all numbers, and a plot of the loss curve."""
    measured = [[point for point in curve if point.held_out] for curve in curves]
    trained = min(unpatched)
    rows: list[dict[str, Any]] = []
    for length in measured[0][-1].held_out:
        after = [run[-1].held_out[length] for run in measured]
        rows.append(
            {
                "length": length,
                "times": length / trained,
                "unpatched": unpatched.get(length),
                "patched": mean(run[0].held_out[length] for run in measured),
                "trained": mean(after),
                "spread": stdev(after) if len(after) > 1 else None,
                "difference": difference([run[-1] for run in measured], length, trained),
            }
        )
    head = ["| length | unpatched | patched | trained | trained, minus at 1× |", "|---|---:|---:|---:|---:|"]
    lines = [*head, *map(line, rows)]
    print("\n".join(lines) + f"\n\nWritten to {arguments.output}: results.md, results.json, curve.png, seed-*")
    write_bytes(arguments.output / "results.md", ("\n".join(lines) + "\n").encode())
    about = {name: str(value) for name, value in vars(arguments).items()}
    points = [[point.to_dict() for point in curve] for curve in curves]
    write_json(arguments.output / "results.json", {"about": about, "rows": rows, "curves": points})
    with suppress(MissingPackage):
        curve_plot(curves, trained, arguments.output / "curve.png")


def difference(last: Sequence[LossPoint], length: int, trained: int) -> tuple[float, float] | None:
    """Loss at a length minus loss at the trained length, of the same tokens, with the half-width of its interval."""
    if length == trained:
        return None
    seeds = [zip(point.windows[length], point.windows[trained], strict=True) for point in last]
    return mean_interval([mean(longer - shorter for longer, shorter in window) for window in zip(*seeds, strict=True)])


def line(row: dict[str, Any]) -> str:
    """Format one length of the table."""
    unpatched = "–" if row["unpatched"] is None else f"{row['unpatched']:.3f}"
    spread = "" if row["spread"] is None else f" ± {row['spread']:.3f}"
    difference = "" if row["difference"] is None else "{:+.3f} ± {:.3f}".format(*row["difference"])
    name = f"{row['length']:,} ({row['times']:g}×)"
    return f"| {name} | {unpatched} | {row['patched']:.3f} | {row['trained']:.3f}{spread} | {difference} |"


if __name__ == "__main__":
    main()
