"""``hf-posenc properties``: measured properties of positional encodings (uniqueness, translation invariance, …)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.commands.list import known_type
from hf_posenc.schemes.registry import list_schemes

if TYPE_CHECKING:
    from hf_posenc.insight.properties import PropertyValue, Rounded

MOST_COLUMNS = 6  # with more schemes, each is a row
ROUNDED = {
    "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8 queries and keys",
    "positions": "positions in bfloat16",
}  # fmt: skip


def properties(
    schemes: Annotated[
        list[str] | None,
        Argument(help="Such as rope, yarn+logn, sinusoidal:kind=sin; default: all.", metavar="[SCHEME]…"),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            "--model",
            "-m",
            help="Type of a model, such as qwen3; default: the first of llama, gpt2 and bert that the scheme is "
            "defined for.",
        ),
    ] = None,
    precision: Annotated[
        bool, Option("--precision", help="Instead: rounding errors of low precision at positions up to a million.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the properties of schemes.

    Each answer is shown with the number that decides it, named; for a single scheme, each number is explained. A table
    of many schemes has the answers alone.
    """
    from hf_posenc.insight.properties import measure, measure_precision
    from hf_posenc.schemes.entry import entries_of

    kind = None if model is None else known_type(model)
    names = schemes or [record.name for record in list_schemes()]
    specs = [(entry.scheme or "none", entry.options) for entry in entries_of(names)]
    with output.progress() as progress:
        if precision:
            errors = measure_precision(specs, model=kind, progress=lambda name: progress(None, name))
        else:
            table = measure(specs, model=kind, progress=lambda name: progress(None, name))
    if precision:
        show_errors(errors, as_json)
    elif as_json:
        output.show_json({name: {key: cell.to_dict() for key, cell in row.items()} for name, row in table.items()})
    else:
        show(table)


def show(table: dict[str, dict[str, PropertyValue]]) -> None:
    """Show one scheme in full, a few as columns, many as rows."""
    from hf_posenc.insight.properties import list_properties

    questions = {one.name: one.question for one in list_properties()}
    names = list(table)
    if len(names) == 1:
        (row,) = table.values()
        lines = [(questions[key], cell, cell.explanation) for key, cell in row.items()]
        output.show_table(("property", names[0], "the number"), lines)
    elif len(names) <= MOST_COLUMNS:
        output.show_table(("property", *names), [(q, *(table[n][k] for n in names)) for k, q in questions.items()])
    else:
        output.show_table(("scheme", *questions), [(name, *map(short, row.values())) for name, row in table.items()])
    if len(names) > 1:
        output.show_text("—: not applicable. Name a single scheme to see why, and what each number means.")


def short(cell: PropertyValue) -> str:
    """The answer alone; the number where the question is not one of yes or no."""
    return cell.answer or str(cell).partition(" (")[0]


def show_errors(errors: Sequence[Rounded], as_json: bool) -> None:
    """Show a row for each scheme and rounding, a column for each position."""
    if as_json:
        output.show_json([{k: str(v) if v == float("inf") else v for k, v in asdict(one).items()} for one in errors])
        return
    positions = sorted({one.start for one in errors})
    found = {(one.scheme, one.kind, one.start): one for one in errors}
    rows = [
        (scheme, ROUNDED[kind], *(error_text(found[scheme, kind, position]) for position in positions))
        for scheme, kind in dict.fromkeys((one.scheme, one.kind) for one in errors)
    ]
    output.show_table(("scheme", "what is rounded", *(f"at position {position:,}" for position in positions)), rows)
    output.show_text(
        "Root-mean-square error of attention scores, then of outputs, against float64, divided by the standard "
        "deviation of the exact values: at 1, nothing of the signal is left. —: the scheme ends before that position."
    )


def error_text(one: Rounded) -> str:
    """Format the two errors, or — where there are none."""
    return "—" if one.scores is None else f"{one.scores:.1e}  {one.outputs:.1e}"
