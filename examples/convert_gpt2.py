"""Convert GPT-2 to another positional encoding: RoPE or ALiBi replaces its table, and brief training adapts the model.

    python examples/convert_gpt2.py --output runs/gpt2-rope                # the bundled starter GPT-2, minutes on a CPU
    python examples/convert_gpt2.py --scheme alibi --seeds 0 1 2 --output runs/gpt2-alibi
    python examples/convert_gpt2.py --model openai-community/gpt2 --text book.txt --held-out other.txt --steps 2000 \\
        --batch 8 --learning-rate 1e-4 --bf16 --output runs/gpt2-large-rope

Any scheme of `hf-posenc list` that is defined on GPT-2 works. The attention weights do not fit the new encoding, so all
weights are trained except the unused table. The script measures the loss of the same last tokens of held-out text after
1×, 2×, 4× … the trained length: unpatched (only at 1×), patched without training, and trained. Each seed has a folder
with checkpoints and the finished model. Interrupted? Add --resume. To load a model:

    hf_posenc.from_pretrained("runs/gpt2-rope/seed-0")
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import claim_folder, doubled_lengths, load_model, mean_and_deviation, progress_bar, read_texts, run_command

import hf_posenc
from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.eval.evaluation import evaluate
from hf_posenc.training import METHODS, Training, finetune

Losses = dict[int, float]


def main() -> None:
    """Parse the command line and run."""
    run_command(run, parse())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="the starter, a folder or a Hub name (default: gpt2)")
    parser.add_argument("--scheme", default="rope", help="rope, alibi, or any of `hf-posenc list` (default: rope)")
    parser.add_argument("--factor", type=float, default=4.0, help="target length / trained length (default: 4)")
    parser.add_argument("--length", type=int, help="tokens per training row (default: the target length)")
    parser.add_argument("--steps", type=int, default=200, help="optimiser steps (default: 200)")
    parser.add_argument("--batch", type=int, default=2, help="rows per step (default: 2)")
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="peak; lower for large models (default: 1e-3)"
    )
    parser.add_argument("--method", choices=sorted(METHODS), default="full", help="what is trained (default: full)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run for each seed (default: 0)")
    parser.add_argument(
        "--text", nargs="+", help="training texts: files, folders or hub:NAME (default: standard library)"
    )
    parser.add_argument("--held-out", nargs="+", help="texts to measure on (default: other modules)")
    parser.add_argument("--samples", type=int, default=32, help="windows of held-out text at each length (default: 32)")
    parser.add_argument("--output", type=Path, required=True, help="folder of models and results")
    parser.add_argument("--resume", action="store_true", help="resume the run in --output")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default: 50)")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory, more time")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Measure the unpatched model, convert it once per seed, and report."""
    claim_folder(arguments.output, arguments)
    model, tokenizer = load_model(arguments.model)
    length = model.config.max_position_embeddings
    target = round(arguments.factor * length)
    unpatched = losses(model, tokenizer, [length], target, arguments)[length]
    print(f"unpatched: {unpatched:.3f} nats/token at {length} tokens")
    results = {seed: one_seed(seed, length, target, arguments) for seed in arguments.seeds}
    report(arguments, length, unpatched, results)


def one_seed(seed: int, length: int, target: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Patch and train the model, and measure it before and after training; a finished seed is read from its folder."""
    folder = arguments.output / f"seed-{seed}"
    done = folder / "losses.json"
    if done.exists():
        return json.loads(done.read_text(encoding="utf-8"))
    model, tokenizer = load_model(arguments.model)
    torch.manual_seed(seed)  # for schemes that draw parameters at random
    print(hf_posenc.describe(hf_posenc.patch_model(model, arguments.scheme, factor=arguments.factor)))
    lengths = doubled_lengths(length, target)
    before = losses(model, tokenizer, lengths, target, arguments)
    training = Training(
        length=arguments.length or target, steps=arguments.steps, method=arguments.method, batch=arguments.batch,
        learning_rate=arguments.learning_rate, seed=seed, save_every=arguments.save_every, bf16=arguments.bf16,
        gradient_checkpointing=arguments.gradient_checkpointing,
    )  # fmt: skip
    started = time.process_time()
    with progress_bar() as progress:
        task = progress.add_task(f"seed {seed}", total=1.0, loss="")
        tuned = finetune(
            model, tokenizer, read_texts(arguments.text), training, out=folder, resume=arguments.resume,
            progress=lambda share, loss: progress.update(task, completed=share, loss=f"loss {loss:.3f}"),
        )  # fmt: skip
    seconds = time.process_time() - started
    after = losses(tuned.model, tokenizer, lengths, target, arguments)
    write_json(done, {"before": before, "after": after, "seconds": seconds})
    return json.loads(done.read_text(encoding="utf-8"))


def losses(model: Any, tokenizer: Any, lengths: list[int], target: int, arguments: argparse.Namespace) -> Losses:
    """Loss in nats/token by length; the scored tokens do not depend on ``lengths``."""
    rows = evaluate(
        model, tokenizer, tasks=["posenc_ppl"], lengths=lengths, longest=target, samples=arguments.samples,
        text=arguments.held_out,
    ).rows  # fmt: skip
    return {row.length: row.value for row in rows if row.metric == "nll" and row.length is not None}


def report(arguments: argparse.Namespace, length: int, unpatched: float, results: dict[int, dict[str, Any]]) -> None:
    """Print a table of mean and deviation over seeds; write the table and all numbers."""
    runs = list(results.values())
    lengths = list(runs[0]["after"])
    lines = [
        f"{arguments.scheme}, {arguments.steps} steps of {arguments.batch} rows, "
        f"{mean(run['seconds'] for run in runs):.0f} s of processor time per seed; nats/token, mean ± deviation of "
        f"{len(runs)} seed{'s' * (len(runs) > 1)}",
        "",
        "| | " + " | ".join(f"{n} ({int(n) / length:g}×)" for n in lengths) + " |",
        "|---|" + "---|" * len(lengths),
        f"| unpatched | {unpatched:.3f} |" + " – |" * (len(lengths) - 1),
    ]
    for name, when in (("patched", "before"), ("trained", "after")):
        lines.append(
            f"| {name} | " + " | ".join(mean_and_deviation([run[when][n] for run in runs]) for n in lengths) + " |"
        )
    print("\n" + "\n".join(lines))
    write_json(arguments.output / "results.json", {"unpatched": unpatched, "seeds": results})
    write_bytes(arguments.output / "results.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
