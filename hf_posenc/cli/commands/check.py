"""``hf-posenc check``: the contract, measured on a user's own model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Factor,
    Model,
    SchemeName,
    SchemeOptions,
    model_path,
    scheme_options,
)
from hf_posenc.cli.errors import CONTRACT, BadArgument
from hf_posenc.errors import nearest

if TYPE_CHECKING:
    from hf_posenc.checks import Gap

COLUMNS = ("law", "holds", "gap", "limit", "worst at")


Laws = Annotated[list[str] | None, Option("--law", "-l", help="Only this law; may be repeated. By default all.")]


def check(
    model: Model,
    scheme: SchemeName,
    factor: Factor = None,
    option: SchemeOptions = None,
    law: Laws = None,
    as_json: AsJson = False,
) -> None:
    """Measure the contract on your own model.

    Every law that says something about this model and scheme is measured; the exit code is 4 if one is broken.
    """
    from hf_posenc import checks
    from hf_posenc.checkpoints.load import from_pretrained

    path, options = model_path(model), scheme_options(scheme, option)
    for name in law or ():
        if name not in checks.LAWS:
            known = ", ".join(checks.LAWS)
            raise BadArgument(f"There is no law {name!r}.{nearest(name, checks.LAWS)} Choose from {known}.")
    with output.progress() as tell:
        gaps = checks.check(
            from_pretrained(path, dtype="float32"),
            scheme,
            factor=factor,
            laws=law,
            progress=lambda law: tell(None, law),
            **options,
        )
    show(gaps, as_json)
    if any(gap.broken for gap in gaps):
        raise Exit(CONTRACT)


def show(gaps: list[Gap], as_json: bool) -> None:
    """One line a law, and how to repeat those that are broken."""
    broken = [gap for gap in gaps if gap.broken]
    if as_json:
        output.show_json([asdict(gap) | {"broken": gap.broken} for gap in gaps])
    else:
        output.show_table(COLUMNS, [(g.law, not g.broken, g.value, g.limit, g.where) for g in gaps])
        output.show_text(
            "\n".join(["Every law holds."] if not broken else [f"{g.law} again: {g.repeat}" for g in broken])
        )
