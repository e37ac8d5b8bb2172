"""``hf-posenc eval``: measure one model at several sequence lengths."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated

from typer import Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Dtype,
    Factor,
    Longest,
    Model,
    SchemeOptions,
    TargetLength,
    TrustTasks,
    check_file,
    dtype_of,
    model_named,
    scheme_options,
)
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, Text, TextField, check_reading, text_source

COLUMNS = ("scheme", "task", "length", "depth", "metric", "value", "stderr", "n", "clusters")


def evaluate(
    model: Model,
    scheme: Annotated[
        str | None, Option("--scheme", "-s", help="Scheme to patch in first; default: leave the model unchanged.")
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    length: Annotated[
        list[int] | None, Option("--length", "-l", help="Sequence length in tokens; may be repeated.")
    ] = None,
    task: Annotated[list[str] | None, Option("--task", "-t", help="lm-eval task; may be repeated.")] = None,
    longest: Longest = None,
    samples: Annotated[int, Option(min=1, help="Windows of text at each length.")] = 16,
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    seed: Annotated[int, Option(min=0, help="Random seed of passkeys, masks and places of windows.")] = 0,
    out: Annotated[Path | None, Option(help="Also write the rows and lm-eval's results to this JSON file.")] = None,
    trust_tasks: TrustTasks = False,
    base: Base = None,
    dtype: Dtype = None,
    option: SchemeOptions = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model at several sequence lengths, through lm-eval.

    By default the cross-entropy loss of the same last tokens at every length, and passkey retrieval.
    """
    from hf_posenc.eval import evaluate as measure

    patch = {"factor": factor, "target_length": target_length, **scheme_options(scheme, option)}
    given = {name: value for name, value in patch.items() if value is not None}
    check_reading(text, text_field, document_separator)
    own_text = text_source(text, text_field, document_separator)
    named, requests = model_named(model, base), count(1)
    if out is not None:
        check_file("--out", out)
    with output.progress() as progress:
        evaluation = measure(
            named.model, peft=named.adapter, scheme=scheme, lengths=length, tasks=task, samples=samples, text=own_text,
            longest=longest, seed=seed, trust_tasks=trust_tasks, dtype=dtype_of(named, dtype),
            on_request=lambda: progress(None, f"request {next(requests)}"), **given,
        )  # fmt: skip
    if out is not None:
        evaluation.save(out)
    if evaluation.first:  # of several processes, one reports
        show([row.to_dict() for row in evaluation.rows], evaluation.remarks, as_json)


def show(rows: list[dict[str, object]], remarks: list[str], as_json: bool) -> None:
    """Show rows as JSON, or as a table with what a reader must know of it."""
    if as_json:
        output.show_json(rows)
    else:
        output.show_table(COLUMNS, [[row[column] for column in COLUMNS] for row in rows])
        for remark in remarks:
            output.show_text(remark)
