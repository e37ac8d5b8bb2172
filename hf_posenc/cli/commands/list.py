"""``hf-posenc list``: all registered schemes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, model_type
from hf_posenc.schemes.registry import list_schemes

COLUMNS = ("name", "aliases", "models", "learned", "use", "cache", "paper")


def list_command(
    model: Annotated[str | None, Option("--model", "-m", help="Only those defined for llama, gpt2 or bert.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all schemes, then the training recipes, which change positions during training only."""
    records = [record for record in list_schemes() if model is None or model_type(model) in record.models]
    records.sort(key=lambda record: record.recipe)
    if as_json:
        output.show_json([asdict(record) for record in records])
    else:
        rows = [(r.name, r.aliases, r.models, r.learned, r.use, r.cache, r.paper) for r in records]
        output.show_table(COLUMNS, rows)
