"""One budget, many schemes: tiny models that differ in position only, trained from random weights, tested beyond.

    python examples/from_scratch.py --task text --output runs/text            # minutes on a CPU
    python examples/from_scratch.py --task copy --seeds 0 1 2 --output runs/copy
    python examples/from_scratch.py --task addition --schemes none rope t5 --steps 4000 --output runs/addition

text      the standard library's source, byte by byte: loss of the same last bytes after 1× … 4× the trained length
          ("train short, test long": Press, Smith, Lewis 2021, arXiv:2108.12409)
copy      a string of digits and the same again: share of strings without a mistake, by their length
addition  two binary numbers and their sum, lowest digit first: share of sums without a mistake, by digits
          (both after Kazemnejad et al. 2023, arXiv:2305.19466, who find models without positions ahead)

All are GPT-2s of one width, depth and vocabulary that start from the same weights and read the same rows in the same
order; schemes that add parameters have more of them. ``learned`` is GPT-2's own table, which ends with the
trained length. Each scheme and seed is a cell with a folder of its own; run the command again and what is finished is
not repeated. Written are results.md, results.json and, with matplotlib, a plot.

One long file on purpose: budget, tasks and report belong to one experiment, to be copied and changed as a whole.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

import hf_posenc
from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.core.plotting.figures import COLOURS, MARKERS, figure
from hf_posenc.errors import MissingExtra, OptionOutOfRange, PosEncError, PositionOutOfTable
from hf_posenc.eval.report.plots import mark_trained
from hf_posenc.eval.texts.stdlib_source import HELD_OUT, TRAINING, module_text
from hf_posenc.schemes.entry import Entry, entries_of
from hf_posenc.training import Training, finetune

SCHEMES = ("learned", "sinusoidal:scale=learned", "rope", "none", "t5", "alibi", "fire")
IGNORED = -100
BEGIN, BETWEEN, END, ZERO = range(4)  # digits follow from ZERO on
ASKED = 64  # bytes of text that are measured, and strings or sums of every length that are asked


@dataclass(frozen=True)
class Budget:
    """What every cell may spend.

    Attributes:
        trained: longest text, string or number that is trained on.
        asked: lengths that are measured.
        steps, batch, learning_rate: of the training.
        width, layers: of the model.
    """

    trained: int
    asked: tuple[int, ...]
    steps: int
    batch: int
    learning_rate: float
    width: int = 64
    layers: int = 2


BUDGETS = {
    "text": Budget(trained=128, asked=(64, 128, 256, 512), steps=500, batch=16, learning_rate=3e-3),
    "copy": Budget(trained=8, asked=(4, 6, 8, 9, 10, 12, 16), steps=1500, batch=32, learning_rate=3e-3),
    "addition": Budget(trained=4, asked=(2, 3, 4, 5, 6, 8), steps=1200, batch=48, learning_rate=2e-3, layers=3),
}


def main() -> None:
    """Run, and say in words what the caller can put right."""
    arguments = parse()
    try:
        run(arguments)
    except (PosEncError, OSError) as error:
        raise SystemExit(str(error)) from error


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(BUDGETS), default="text")
    parser.add_argument(
        "--schemes", nargs="+", default=SCHEMES, metavar="SCHEME[:OPTION=VALUE,…]", help=f"default: {' '.join(SCHEMES)}"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of weights and rows (default: 0)")
    parser.add_argument("--output", type=Path, required=True, help="folder of cells and results")
    for name in ("steps", "batch", "trained", "width", "layers"):
        parser.add_argument(f"--{name}", type=int, help=f"default: {defaults(name)}")
    parser.add_argument("--learning-rate", type=float, help=f"peak; default: {defaults('learning_rate')}")
    parser.add_argument("--asked", type=int, nargs="+", help=f"lengths to measure; default: {defaults('asked')}")
    return parser.parse_args()


def defaults(name: str) -> str:
    """What an option is left at, by task."""
    return ", ".join(f"{getattr(budget, name)} ({task})" for task, budget in BUDGETS.items())


def run(arguments: argparse.Namespace) -> None:
    """Fill the cells that are empty, then report all."""
    chosen = {name: value for name, value in vars(arguments).items() if name in Budget.__annotations__ and value}
    budget = replace(BUDGETS[arguments.task], **chosen)
    cells = {}
    with bar() as progress:
        for entry in entries_of(arguments.schemes):
            for seed in arguments.seeds:
                task = progress.add_task(f"{entry.label}, seed {seed}", total=1.0, loss="")
                cells[entry.label, seed] = cell(
                    arguments, budget, entry, seed,
                    lambda share, loss, task=task: progress.update(task, completed=share, loss=f"loss {loss:.3f}"),
                )  # fmt: skip
                progress.update(task, completed=1.0)
    report(arguments, budget, cells)


def cell(arguments: argparse.Namespace, budget: Budget, entry: Entry, seed: int, progress: Any) -> dict[str, Any]:
    """One scheme and seed: trained and measured, or read from its folder.

    Raises:
        SystemExit: the folder holds a cell of another budget.
    """
    file = arguments.output / re.sub(r"[^\w.=+-]", "_", entry.label) / f"seed-{seed}" / "cell.json"
    settings = json.loads(json.dumps({"task": arguments.task, **entry.settings(), **asdict(budget)}))
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["settings"] != settings:
            raise SystemExit(f"{file} is of another task or budget. Choose another --output.")
        return found
    task = TASKS[arguments.task](budget, seed)
    started = time.process_time()
    model = patched(budget, task, entry, seed)
    training = Training(
        length=task.longest, steps=budget.steps, method="full", batch=budget.batch, learning_rate=budget.learning_rate,
        seed=seed, chunked_loss=False,
    )  # fmt: skip
    # Ready rows need no tokenizer.
    tuned = finetune(model, None, task, training, progress=progress)  # type: ignore[arg-type]
    found = {
        "settings": settings, "seconds": time.process_time() - started,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "loss": mean(point.loss for point in tuned.curve[-50:] if point.loss is not None),
        "measured": {str(n): measured(tuned.model, task, n) for n in budget.asked},
    }  # fmt: skip
    write_json(file, found)
    return found


def patched(budget: Budget, task: Task, entry: Entry, seed: int) -> Any:
    """A fresh GPT-2 under a scheme; the same weights for every scheme."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=task.vocabulary, n_embd=budget.width, n_layer=budget.layers, n_head=4, n_positions=task.longest,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
        )
    )  # fmt: skip
    model.loss_type = "ForCausalLM"  # transformers would take it too, with a warning
    if entry.scheme is None:
        return model
    longest = max(map(task.tokens, (*budget.asked, budget.trained)))
    try:
        return hf_posenc.patch_model(model, entry.scheme, target_length=longest, **entry.options)
    except OptionOutOfRange:  # it ends with what it is trained on, or the option is wrong and refused again
        return hf_posenc.patch_model(model, entry.scheme, **entry.options)


@torch.no_grad()
def measured(model: Any, task: Task, length: int) -> float | None:
    """The task's measure at a length; None where the scheme does not reach it."""
    rows = task.questions(length)
    try:
        logits = torch.cat([model(input_ids=part).logits for part in rows["input_ids"].split(16)])
    except PositionOutOfTable:
        return None
    return task.score(logits[:, :-1].float(), rows["labels"][:, 1:])


class Task(Dataset):
    """Rows to train on, the same for every scheme, and questions to measure on, the same for every seed."""

    vocabulary: int
    measure: str
    unit: str

    def __init__(self, budget: Budget, seed: int) -> None:
        self.budget, self.seed = budget, seed

    def __len__(self) -> int:
        return self.budget.steps * self.budget.batch

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is trained on."""
        return self.tokens(self.budget.trained)

    def tokens(self, length: int) -> int:
        """Tokens of a row of that length."""
        raise NotImplementedError

    def questions(self, length: int) -> dict[str, Tensor]:
        """Rows of that length, ``[row, token]``, with what is asked of them as labels."""
        raise NotImplementedError

    def score(self, logits: Tensor, labels: Tensor) -> float:
        """Of answers ``[row, token, word]`` to what is asked, ``[row, token]``."""
        raise NotImplementedError


class Text(Task):
    """Bytes of the standard library's sources."""

    vocabulary, measure, unit = 256, "nats a byte", "bytes"

    def __init__(self, budget: Budget, seed: int) -> None:
        super().__init__(budget, seed)
        self.trained, self.held_out = (
            torch.frombuffer(bytearray("\n".join(map(module_text, names)).encode()), dtype=torch.uint8)
            for names in (TRAINING, HELD_OUT)
        )

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = random.Random(f"{self.seed}-{index}").randrange(len(self.trained) - self.longest)
        ids = self.trained[start : start + self.longest].long()
        return {"input_ids": ids, "labels": ids}

    def tokens(self, length: int) -> int:
        """A byte is a token."""
        return length

    def questions(self, length: int) -> dict[str, Tensor]:
        """The last bytes are asked for, and are the same at every length."""
        ends = torch.linspace(max(self.budget.asked), len(self.held_out), ASKED).long().tolist()
        ids = torch.stack([self.held_out[end - length : end] for end in ends]).long()
        scored = min(self.budget.asked) // 2
        return {"input_ids": ids, "labels": ids.index_fill(1, torch.arange(length - scored), IGNORED)}

    def score(self, logits: Tensor, labels: Tensor) -> float:
        """Mean loss."""
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED).item()


class Puzzle(Task):
    """A question in digits, and the one answer there is."""

    vocabulary, measure = ZERO + 10, "share without a mistake"

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """Question and answer, as tokens."""
        raise NotImplementedError

    def row(self, length: int, draw: random.Random, room: int) -> dict[str, Tensor]:
        """One puzzle, filled up to ``room`` tokens; what is not answer is not asked for."""
        question, answer = self.puzzle(length, draw)
        filled = [END] * (room - len(question) - len(answer))
        labels = [IGNORED] * len(question) + answer + [IGNORED] * len(filled)
        return {"input_ids": torch.tensor(question + answer + filled), "labels": torch.tensor(labels)}

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw = random.Random(f"{self.seed}-{index}")
        return self.row(draw.randint(1, self.budget.trained), draw, self.longest)

    def questions(self, length: int) -> dict[str, Tensor]:
        """Puzzles of one length."""
        draw = random.Random(f"asked-{length}")
        rows = [self.row(length, draw, self.tokens(length)) for _ in range(4 * ASKED)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def score(self, logits: Tensor, labels: Tensor) -> float:
        """Share of rows that greedy decoding answers without a mistake: read off one forward."""
        right = (logits.argmax(-1) == labels) | (labels == IGNORED)
        return right.all(-1).float().mean().item()


class Copy(Puzzle):
    """A string of digits, and the same again."""

    unit = "digits"

    def tokens(self, length: int) -> int:
        """String, copy and three marks."""
        return 2 * length + 3

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The copy is answered."""
        string = [draw.randrange(ZERO, ZERO + 10) for _ in range(length)]
        return [BEGIN, *string, BETWEEN], [*string, END]


class Addition(Puzzle):
    """Two binary numbers of equally many digits and their sum, all with the lowest digit first, as carries run."""

    unit = "binary digits a number"

    def tokens(self, length: int) -> int:
        """Two numbers, a sum of one digit more, and four marks."""
        return 3 * length + 5

    def puzzle(self, length: int, draw: random.Random) -> tuple[list[int], list[int]]:
        """The sum is answered."""
        numbers = [draw.randrange(2**length) for _ in range(2)]
        first, second = (digits(number, length) for number in numbers)
        return [BEGIN, *first, BETWEEN, *second, BETWEEN], [*digits(sum(numbers), length + 1), END]


def digits(number: int, count: int) -> list[int]:
    """The binary digits of a number as tokens, lowest first."""
    return [ZERO + (number >> place & 1) for place in range(count)]


TASKS: dict[str, type[Task]] = {"text": Text, "copy": Copy, "addition": Addition}


def report(arguments: argparse.Namespace, budget: Budget, cells: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Print a table of mean and spread over seeds; write it, all numbers and a picture."""
    task = TASKS[arguments.task]
    seconds = sum(found["seconds"] for found in cells.values())
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
        lines.append(f"| {scheme} | {size:,} | " + " | ".join(map(spread, columns)) + " |")
    print("\n" + "\n".join(lines))
    write_bytes(arguments.output / "results.md", ("\n".join(lines) + "\n").encode())
    write_json(
        arguments.output / "results.json",
        [{"scheme": scheme, "seed": seed, **found} for (scheme, seed), found in cells.items()],
    )
    try:
        picture(arguments.output / "picture.png", budget, task, table)
        print(f"picture: {arguments.output / 'picture.png'}")
    except MissingExtra as error:
        print(error)


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation; a dash where a scheme ends."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.3f}" + (f" ± {stdev(known):.3f}" if len(known) > 1 else "")


def picture(path: Path, budget: Budget, task: type[Task], table: dict[str, list[list[float | None]]]) -> None:
    """Mean over seeds against length, one line a scheme.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    canvas, axes = figure(8.0, 4.8)
    for number, (scheme, columns) in enumerate(table.items()):
        line = [(n, mean(known)) for n, column in zip(budget.asked, columns, strict=True) if (known := present(column))]
        axes.plot(
            *zip(*line, strict=True), label=scheme, color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)], linewidth=1.8,
        )  # fmt: skip
    mark_trained(axes, budget.trained)
    axes.set_xticks(budget.asked)
    axes.set_xlabel(task.unit)
    axes.set_ylabel(task.measure)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)


def present(values: Sequence[float | None]) -> list[float]:
    """The values there are."""
    return [value for value in values if value is not None]


def bar() -> Progress:
    """A line a cell: share done, time left and the step's loss."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}")
    )


if __name__ == "__main__":
    main()
