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
    from hf_posenc.checks import Deviation

COLUMNS = ("check", "passes", "deviation", "limit", "worst at")


Checks = Annotated[list[str] | None, Option("--check", "-c", help="Only this check; may be repeated. By default all.")]


def check(
    model: Model,
    scheme: SchemeName,
    factor: Factor = None,
    option: SchemeOptions = None,
    check: Checks = None,
    as_json: AsJson = False,
) -> None:
    """Measure the contract on your own model.

    Every check that says something about this model and scheme is measured; the exit code is 4 if one is broken.
    """
    from hf_posenc import checks
    from hf_posenc.checkpoints.load import from_pretrained

    path, options = model_path(model), scheme_options(scheme, option)
    for name in check or ():
        if name not in checks.CHECKS:
            known = ", ".join(checks.CHECKS)
            raise BadArgument(f"There is no check {name!r}.{nearest(name, checks.CHECKS)} Choose from {known}.")
    with output.progress() as tell:
        gaps = checks.check_scheme(
            from_pretrained(path, dtype="float32"),
            scheme,
            factor=factor,
            checks=check,
            progress=lambda check: tell(None, check),
            **options,
        )
    show(gaps, as_json)
    if any(gap.failed for gap in gaps):
        raise Exit(CONTRACT)


def show(gaps: list[Deviation], as_json: bool) -> None:
    """One line a check, and how to repeat those that are broken."""
    broken = [gap for gap in gaps if gap.failed]
    if as_json:
        output.show_json([asdict(gap) | {"failed": gap.failed} for gap in gaps])
    else:
        output.show_table(COLUMNS, [(g.check, not g.failed, g.value, g.limit, g.where) for g in gaps])
        output.show_text(
            "\n".join(["Every check passes."] if not broken else [f"{g.check} again: {g.repeat}" for g in broken])
        )
