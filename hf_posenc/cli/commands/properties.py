"""``hf-posenc properties``: what an encoding should be able to do, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, model_type
from hf_posenc.schemes.registry import list_schemes

if TYPE_CHECKING:
    from hf_posenc.insight.properties import Cell, Rounded

SIDE_BY_SIDE = 6  # more schemes than that are rows
ROUNDED = {
    "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8 queries and keys",
    "positions": "positions in bfloat16",
}  # fmt: skip


def properties(
    schemes: Annotated[
        list[str] | None,
        Argument(help="Such as rope, yarn+logn, sinusoidal:kind=sin; by default all.", metavar="[SCHEME]…"),
    ] = None,
    model: Annotated[
        str | None, Option("--model", "-m", help="llama, gpt2 or bert; by default the first it is defined for.")
    ] = None,
    precision: Annotated[
        bool, Option("--precision", help="Errors of low precision at positions up to a million instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the properties of schemes.

    Each answer stands beside the number that decided it; one scheme alone is shown with what each number is.
    """
    from hf_posenc.insight.properties import measure, measure_precision
    from hf_posenc.schemes.entry import entries_of

    kind = None if model is None else model_type(model)
    names = schemes or [record.name for record in list_schemes()]
    asked = [(entry.scheme or "none", entry.options) for entry in entries_of(names)]
    with output.progress() as tell:
        if precision:
            errors = measure_precision(asked, model=kind, progress=lambda name: tell(None, name))
        else:
            table = measure(asked, model=kind, progress=lambda name: tell(None, name))
    if precision:
        show_errors(errors, as_json)
    elif as_json:
        output.show_json({name: {key: cell.to_dict() for key, cell in row.items()} for name, row in table.items()})
    else:
        show(table)


def show(table: dict[str, dict[str, Cell]]) -> None:
    """One scheme in full, a few side by side, many as rows."""
    from hf_posenc.insight.properties import in_order

    asked = {one.name: one.asks for one in in_order()}
    names = list(table)
    if len(names) == 1:
        (row,) = table.values()
        output.show_table(("property", names[0], "the number"), [(asked[k], c, c.says) for k, c in row.items()])
    elif len(names) <= SIDE_BY_SIDE:
        output.show_table(("property", *names), [(asks, *(table[n][k] for n in names)) for k, asks in asked.items()])
    else:
        output.show_table(("scheme", *asked), [(name, *map(short, row.values())) for name, row in table.items()])
    if len(names) > 1:
        output.show_text("— where the question does not arise. One scheme alone shows why, and what each number is.")


def short(cell: Cell) -> str:
    """A cell without its note."""
    return str(cell).partition(" (")[0]


def show_errors(errors: Sequence[Rounded], as_json: bool) -> None:
    """A row for each scheme and rounding, a column for each place."""
    if as_json:
        output.show_json([{k: str(v) if v == float("inf") else v for k, v in asdict(one).items()} for one in errors])
        return
    places = sorted({one.start for one in errors})
    found = {(one.scheme, one.kind, one.start): one for one in errors}
    rows = [
        (scheme, ROUNDED[kind], *(error_text(found[scheme, kind, place]) for place in places))
        for scheme, kind in dict.fromkeys((one.scheme, one.kind) for one in errors)
    ]
    output.show_table(("scheme", "what is rounded", *(f"at position {place:,}" for place in places)), rows)
    output.show_text(
        "Error of attention scores, then of outputs, against float64: root mean square, in units of what exact scores "
        "or outputs differ by. At 1 nothing is left of them; — where the scheme ends before."
    )


def error_text(one: Rounded) -> str:
    """Two errors, or that there are none."""
    return "—" if one.scores is None else f"{one.scores:.1e}  {one.outputs:.1e}"
