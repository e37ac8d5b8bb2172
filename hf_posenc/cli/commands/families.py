"""``hf-posenc families``: which models can be patched."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson

COLUMNS = ("family", "kind", "can be patched", "schemes", "positions, or the reason")
VERDICTS = {
    "exact": "yes",
    "attention layers": "attention layers",
    "refused": "no",
    "not built": "not built",
}


def families(
    model: Annotated[
        str | None, Option("--model", "-m", help="A checkpoint of your own, or a type such as qwen3; all by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which families of models can be patched, as measured on the installed transformers (minutes for all)."""
    from hf_posenc.insight.families import survey

    if model is not None:
        found = survey.one(model)
    else:
        total, found = sum(map(len, survey.CLASSES.values())), []
        with output.progress(quiet=as_json) as report:
            for number, family in enumerate(survey.survey(), 1):
                found.append(family)
                report(number / total, family.model_type)
    if as_json:
        output.show_json([asdict(one) for one in found])
    else:
        output.show_table(COLUMNS, [(f.model_type, f.kind, VERDICTS[f.verdict], f.schemes, f.detail) for f in found])
