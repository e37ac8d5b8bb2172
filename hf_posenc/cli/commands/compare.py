"""``hf-posenc compare``: several schemes on one model, task by task and length by length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Dtype,
    Model,
    TrustTasks,
    command_line,
    depths_of,
    dtype_of,
    model_named,
    whole_numbers,
    words_of,
)
from hf_posenc.cli.errors import FAILED, PARTLY
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, Text, TextField, check_reading, text_source

if TYPE_CHECKING:
    from hf_posenc.eval import Comparison

FILES = "page.html, results.md, results.csv, results.json, results.tex, and figures (.pdf, .svg)"
Quiet = Annotated[bool, Option("--quiet", "-q", help="Write nothing but errors to the screen.")]


def compare(
    context: Context,
    model: Model,
    schemes: Annotated[
        list[str],
        Option(
            "--schemes",
            "--scheme",
            "-s",
            help="yarn,self_extend:group=8,window=128,unpatched; may be repeated. unpatched is the baseline.",
        ),
    ],
    lengths: Annotated[
        list[str] | None,
        Option(
            "--lengths",
            "--length",
            "-l",
            help="Sequence lengths in tokens, as in 256,512; default: 1, 2, 4 times the trained length.",
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        Option("--tasks", "--task", "-t", help="lm-eval tasks or groups; default: loss and passkey retrieval."),
    ] = None,
    out: Annotated[Path, Option(help="Folder of the results; the same command resumes there.")] = Path(
        "results/compare"
    ),
    samples: Annotated[int, Option(min=1, help="Windows of text at each length.")] = 16,
    scored: Annotated[int, Option(min=1, help="Tokens scored at the end of each window.")] = 64,
    keys: Annotated[int, Option(min=1, help="Passkeys or needles, each inserted at every depth.")] = 8,
    depths: Annotated[str, Option(help="Relative depths of the key in the filler text, 0 to 1.")] = "0,0.25,0.5,0.75,1",
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    seed: Annotated[int, Option(min=0, help="Random seed of passkeys, masks and learned schemes.")] = 0,
    limit: Annotated[int | None, Option(min=1, help="Documents per length, for a quick look.")] = None,
    one_factor: Annotated[
        bool, Option("--one-factor", help="Patch once for the longest length, instead of once per length.")
    ] = False,
    base: Base = None,
    dtype: Dtype = None,
    device: Annotated[str | None, Option(help="cpu, cuda, cuda:1; default: CUDA if available.")] = None,
    batch_size: Annotated[int, Option(min=1, help="Requests of one length per forward pass.")] = 1,
    include_path: Annotated[Path | None, Option(help="Folder of further task files; needs --trust-tasks.")] = None,
    trust_tasks: TrustTasks = False,
    report_to: Annotated[
        list[str] | None, Option(help="Experiment tracker, such as trackio, wandb or tensorboard; may be repeated.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on your own model.

    Each scheme on each task at each length is a cell, stored as soon as it is measured: after an interruption, the same
    command resumes. The exit code is 3 where a scheme was refused, 1 where a cell failed.
    """
    from hf_posenc.eval import compare as run
    from hf_posenc.eval.report.trackers import report_to_trackers
    from hf_posenc.training.config_checks import check_trackers

    check_reading(text, text_field, document_separator)
    trackers = words_of(report_to) or []
    check_trackers(trackers)
    own_text = text_source(text, text_field, document_separator)
    named = model_named(model, base)
    loading: dict[str, Any] = {"dtype": dtype_of(named, dtype), "batch_size": batch_size}
    name = named.adapter or named.model  # with the base that the adapter names
    if base is not None:
        name, loading["peft"] = named.model, named.adapter
    if device is not None:
        loading["device"] = device
    chosen, given = whole_numbers("--lengths", lengths), depths_of(depths)
    try:
        with output.progress(quiet) as progress:
            comparison = run(
                name, ",".join(schemes), out=out, lengths=chosen, tasks=words_of(tasks), samples=samples,
                scored=scored, keys=keys, depths=given, text=own_text, seed=seed, limit=limit, one_factor=one_factor,
                include_path=include_path, trust_tasks=trust_tasks, name=model, command=command_line(context),
                progress=progress, **loading,
            )  # fmt: skip
    except KeyboardInterrupt:
        output.fail(f"Interrupted. Finished cells are kept; resume with: {command_line(context)}")
        raise
    if trackers:
        report_to_trackers(comparison, trackers, out)
    if as_json:
        output.show_json(comparison.to_dict())
    elif not quiet:
        show(comparison, out)
    if comparison.with_state("failed"):
        raise Exit(FAILED)
    if comparison.with_state("refused"):
        raise Exit(PARTLY)


def show(comparison: Comparison, out: Path) -> None:
    """Show one table per task, what was refused or failed, and the files written."""
    from hf_posenc.eval.report.phrases import axis_label, remarks, table_of
    from hf_posenc.eval.results.gate import shown_metrics

    for task in comparison.tasks():
        for metric in shown_metrics(comparison, task)[:1]:
            head, lines = table_of(comparison, task, metric)
            output.show_table(head, lines, title=f"{task}: {axis_label(metric)}")
    for remark in remarks(comparison):
        output.show_text(remark)
    output.show_text(f"Written to {out}: {FILES}")
