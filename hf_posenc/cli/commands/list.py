"""``hf-posenc list``: all registered schemes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.errors import nearest
from hf_posenc.schemes.registry import list_schemes

COLUMNS = ("name", "aliases", "defined for", "learned", "use", "cache", "paper")


def list_command(
    model: Annotated[str | None, Option("--model", "-m", help="Only those defined for llama, gpt2, qwen3, ….")] = None,
    as_json: AsJson = False,
) -> None:
    """List all schemes, then the training recipes, which change positions during training only."""
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


def known_type(model: str) -> str:
    """Check that transformers knows a model type.

    Raises:
        BadArgument: it does not.
    """
    from hf_posenc.patches.default_geometry import model_types

    if model not in (known := model_types()):
        raise BadArgument(f"transformers knows no model type {model!r}.{nearest(model, known)} Choose another.")
    return model
