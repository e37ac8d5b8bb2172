"""``hf-posenc list``: all registered schemes, or the families of models that can be patched."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.errors import nearest
from hf_posenc.schemes.registry import list_schemes

FAMILIES = ("family", "kind", "can be patched", "schemes", "positions, or the reason")
VERDICTS = {"exact": "yes", "attention layers": "attention layers", "refused": "no", "not built": "not built"}
COLUMNS = ("name", "aliases", "defined for", "learned", "use", "cache", "paper")


def list_command(
    model: Annotated[
        str | None,
        Option("--model", "-m", help="Only those defined for llama, gpt2, qwen3, …; with --models, a checkpoint, too."),
    ] = None,
    models: Annotated[
        bool, Option("--models", help="Instead: families of models that can be patched; without --model, minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List all schemes, then the training recipes, which change positions during training only."""
    if models:
        show_families(model, as_json)
        return
    records = list_schemes()
    if model is not None:
        from hf_posenc.patches.default_geometry import default_geometry  # loads transformers: seconds

        geometry = default_geometry(known_type(model))
        records = [record for record in records if not record.unmet_needs(geometry)]
    records.sort(key=lambda record: record.recipe)
    if as_json:
        output.show_json([asdict(record) for record in records])
    else:
        rows = [(r.name, r.aliases, r.defined_for, r.learned, r.use, r.cache, r.paper) for r in records]
        output.show_table(COLUMNS, rows)


def show_families(model: str | None, as_json: bool) -> None:
    """Show which families of models can be patched, as measured on the installed transformers."""
    from hf_posenc.insight import families

    if model is not None:
        found = families.one(model)
    else:
        total, found = sum(map(len, families.CLASSES.values())), []
        with output.progress(quiet=as_json) as report:
            for number, family in enumerate(families.survey(), 1):
                found.append(family)
                report(number / total, family.model_type)
    if as_json:
        output.show_json([asdict(one) for one in found])
    else:
        output.show_table(FAMILIES, [(f.model_type, f.kind, VERDICTS[f.verdict], f.schemes, f.detail) for f in found])


def known_type(model: str) -> str:
    """Check that transformers knows a model type.

    Raises:
        BadArgument: it does not.
    """
    from hf_posenc.patches.default_geometry import model_types

    if model not in (known := model_types()):
        raise BadArgument(f"transformers knows no model type {model!r}.{nearest(model, known)} Choose another.")
    return model
