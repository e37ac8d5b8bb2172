"""Train tiny models from random weights that differ only in their positional scheme, and test them on longer inputs.

    python examples/from_scratch.py --task text --output runs/text            # minutes on a CPU
    python examples/from_scratch.py --task copy --seeds 0 1 2 --output runs/copy
    python examples/from_scratch.py --task addition --schemes none rope t5 --steps 4000 --output runs/addition

text      the standard library's source, byte by byte: loss of the same last bytes after 1× … 4× the trained length
          ("train short, test long": Press, Smith, Lewis 2021, arXiv:2108.12409)
copy      a string of digits, then the same string again: share of strings without a mistake, by length
addition  two binary numbers and their sum, lowest digit first: share of sums without a mistake, by digits
          (both after Kazemnejad et al. 2023, arXiv:2305.19466, who find that models without positions do best)

All models are GPT-2s of equal width, depth and vocabulary. They start from the same weights and read the same rows in
the same order; a scheme may add parameters of its own. ``learned`` is GPT-2's own table, which ends at the trained
length. Each scheme and seed has a folder; if you run the command again, finished ones are not repeated. The script
writes results.md, results.json and, with matplotlib, a plot.

Tasks and models are those of `examples/findings`. Here `hf_posenc.training.finetune` trains them, with a budget and
schemes of your choice.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent / "findings")]

from common import mean_and_deviation, progress_bar, run_command
from laboratory.puzzles import Addition, Copy
from laboratory.task import Task, TrainingBudget
from laboratory.tasks import Text
from laboratory.tiny import tiny_model

from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.core.plotting import COLOURS, MARKERS, figure
from hf_posenc.errors import MissingPackage, PositionOutOfTable
from hf_posenc.schemes.entry import Entry, entries_of
from hf_posenc.training import Training, finetune

SCHEMES = ("learned", "sinusoidal:scale=learned", "rope", "none", "t5", "alibi", "fire")
TASKS: dict[str, type[Task]] = {"text": Text, "copy": Copy, "addition": Addition}
BUDGETS = {
    "text": TrainingBudget(trained=128, asked=(64, 128, 256, 512), steps=500, batch=16, learning_rate=3e-3),
    "copy": TrainingBudget(trained=8, asked=(4, 6, 8, 9, 10, 12, 16), steps=1500, batch=32, learning_rate=3e-3),
    "addition": TrainingBudget(trained=4, asked=(2, 3, 4, 5, 6, 8), steps=1200, batch=48, learning_rate=2e-3, layers=3),
}


def main() -> None:
    """Parse the command line and run."""
    run_command(run, parse())


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(BUDGETS), default="text")
    parser.add_argument(
        "--schemes", nargs="+", default=SCHEMES, metavar="SCHEME[:OPTION=VALUE,…]", help=f"default: {' '.join(SCHEMES)}"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of weights and rows (default: 0)")
    parser.add_argument("--output", type=Path, required=True, help="folder for models' results and the report")
    for name in ("steps", "batch", "trained", "width", "layers"):
        parser.add_argument(f"--{name}", type=int, help=f"default: {defaults(name)}")
    parser.add_argument("--learning-rate", type=float, help=f"peak; default: {defaults('learning_rate')}")
    parser.add_argument("--asked", type=int, nargs="+", help=f"lengths to measure; default: {defaults('asked')}")
    return parser.parse_args()


def defaults(name: str) -> str:
    """Default of an option for each task, as text."""
    return ", ".join(f"{getattr(budget, name)} ({task})" for task, budget in BUDGETS.items())


def run(arguments: argparse.Namespace) -> None:
    """Train and measure every scheme with every seed, then report."""
    chosen = {
        name: value for name, value in vars(arguments).items() if name in TrainingBudget.__annotations__ and value
    }
    budget = replace(BUDGETS[arguments.task], **chosen)
    cells = {}
    with progress_bar() as progress:
        for entry in entries_of(arguments.schemes):
            for seed in arguments.seeds:
                task = progress.add_task(f"{entry.label}, seed {seed}", total=1.0, loss="")
                cells[entry.label, seed] = cell(
                    arguments, budget, entry, seed,
                    lambda share, loss, task=task: progress.update(task, completed=share, loss=f"loss {loss:.3f}"),
                )  # fmt: skip
                progress.update(task, completed=1.0)
    report(arguments, budget, cells)


def cell(
    arguments: argparse.Namespace, budget: TrainingBudget, entry: Entry, seed: int, progress: Any
) -> dict[str, Any]:
    """Train and measure one scheme with one seed, or read the result from its folder.

    Raises:
        SystemExit: the folder holds a result of another task or budget.
    """
    file = arguments.output / re.sub(r"[^\w.=+-]", "_", entry.label) / f"seed-{seed}" / "cell.json"
    settings = json.loads(json.dumps({"task": arguments.task, **entry.settings(), **asdict(budget)}))
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["settings"] != settings:
            raise SystemExit(f"{file} is of another task or budget. Choose another --output.")
        return stored
    task = TASKS[arguments.task](budget, seed)
    started = time.process_time()
    model = tiny_model(task, entry, seed)
    training = Training(
        length=task.longest, steps=budget.steps, method="full", batch=budget.batch, learning_rate=budget.learning_rate,
        seed=seed, chunked_loss=False,
    )  # fmt: skip
    # The rows of a task are token ids already, so no tokenizer is needed.
    tuned = finetune(model, None, task, training, progress=progress)  # type: ignore[arg-type]
    result = {
        "settings": settings, "seconds": time.process_time() - started,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "loss": mean(point.loss for point in tuned.curve[-50:] if point.loss is not None),
        "measured": {str(n): measured(tuned.model, task, n) for n in budget.asked},
    }  # fmt: skip
    write_json(file, result)
    return result


@torch.no_grad()
def measured(model: Any, task: Task, length: int) -> float | None:
    """Score of the task at a length; None if the scheme is not defined at this length."""
    rows = task.questions(length)
    try:
        logits = torch.cat([model(input_ids=part).logits for part in rows["input_ids"].split(16)])
    except PositionOutOfTable:
        return None
    return task.score(logits[:, :-1].float(), rows["labels"][:, 1:])


def report(arguments: argparse.Namespace, budget: TrainingBudget, cells: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Print a table of mean and deviation over seeds; write the table, all numbers and a plot."""
    task = TASKS[arguments.task]
    seconds = sum(result["seconds"] for result in cells.values())
    lines = [
        f"{arguments.task}: {task.measure}, by {task.unit} (trained on up to {budget.trained}); "
        f"{budget.steps} steps of {budget.batch} rows, width {budget.width}, {budget.layers} layers, "
        f"{len(arguments.seeds)} seed{'s' * (len(arguments.seeds) > 1)}; {seconds:.0f} s of processor time",
        "",
        "| scheme | parameters | " + " | ".join(f"{n}" for n in budget.asked) + " |",
        "|---|---|" + "---|" * len(budget.asked),
    ]
    table = {
        scheme: [[cells[scheme, seed]["measured"][str(n)] for seed in arguments.seeds] for n in budget.asked]
        for scheme in dict.fromkeys(scheme for scheme, _ in cells)
    }
    for scheme, columns in table.items():
        size = cells[scheme, arguments.seeds[0]]["parameters"]
        lines.append(f"| {scheme} | {size:,} | " + " | ".join(map(mean_and_deviation, columns)) + " |")
    print("\n" + "\n".join(lines))
    write_bytes(arguments.output / "results.md", ("\n".join(lines) + "\n").encode())
    write_json(
        arguments.output / "results.json",
        [{"scheme": scheme, "seed": seed, **result} for (scheme, seed), result in cells.items()],
    )
    try:
        picture(arguments.output / "picture.png", budget, task, table)
        print(f"picture: {arguments.output / 'picture.png'}")
    except MissingPackage as error:
        print(error)


def picture(path: Path, budget: TrainingBudget, task: type[Task], table: dict[str, list[list[float | None]]]) -> None:
    """Plot the mean over seeds against length, one line per scheme.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    canvas, axes = figure(8.0, 4.8)
    for number, (scheme, columns) in enumerate(table.items()):
        line = [(n, mean(known)) for n, column in zip(budget.asked, columns, strict=True) if (known := present(column))]
        axes.plot(
            *zip(*line, strict=True), label=scheme, color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)], linewidth=1.8,
        )  # fmt: skip
    axes.axvline(budget.trained, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    axes.annotate(
        "trained length", (budget.trained, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4), va="top",
        textcoords="offset points", fontsize=8, color="#555555",
    )  # fmt: skip
    axes.set_xticks(budget.asked)
    axes.set_xlabel(task.unit)
    axes.set_ylabel(task.measure)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)


def present(values: Sequence[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


if __name__ == "__main__":
    main()
