"""``hf-posenc compare``: several schemes on one model, task by task and length by length."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option

from hf_posenc.cli import arguments as cli
from hf_posenc.cli import output
from hf_posenc.cli.commands.finetune_result import resume_hint
from hf_posenc.cli.config_file import ConfigFile
from hf_posenc.cli.errors import FAILED, PARTLY
from hf_posenc.cli.settings import SOURCES, Lengths, Samples, Settings, Tasks, Text, measured_settings

if TYPE_CHECKING:
    from hf_posenc.eval import Comparison, MeasuredModel


of_tuning = partial(Option, rich_help_panel="Choice of options")
FILES = "page.html, results.md, .csv and .json, documents.jsonl"
FULL: dict[str, Any] = {
    "schemes": "unpatched,pi,ntk,yarn,yarn+resonance,mrrope,dynamic_ntk,self_extend,dpe,jet_long,rerope,window",
    "lengths": (256, 512, 1024, 2048), "samples": 24, "keys": 5,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "schemes": "unpatched,pi,yarn,dynamic_ntk,rerope", "lengths": (256, 512, 1024), "samples": 6, "keys": 2,
    "depths": (0.0, 0.5, 1.0),
}  # fmt: skip


def compare(
    context: Context,
    model: Annotated[list[str], cli.of_model("--model", "-m", help=f"{cli.MODEL_HELP} May be repeated.")],
    schemes: Annotated[
        list[str],
        cli.of_model(
            "--schemes",
            "-s",
            help="Such as yarn,self_extend:group=8,window=128,unpatched; may be repeated. unpatched: the baseline.",
        ),
    ],
    lengths: Lengths = None,
    tasks: Tasks = None,
    samples: Samples = None,
    text: Text = None,
    out: Annotated[Path, cli.of_output(help="Folder of the results; the same command resumes there.")] = Path(
        "results/compare"
    ),
    against: Annotated[
        str | None,
        cli.of_measurement(
            help="Scheme that the others are compared with, document by document: significant differences are marked."
        ),
    ] = None,
    rank: Annotated[
        bool,
        cli.of_measurement("--rank", help="Rank the schemes on each task, with intervals, effective length and time."),
    ] = False,
    tune: Annotated[
        bool, of_tuning("--tune", help="Choose the options of schemes on --dev-text; it must differ from --text.")
    ] = False,
    dev_text: Annotated[
        list[str] | None, of_tuning("--dev-text", help=f"Development text, to choose options on: {SOURCES}.")
    ] = None,
    budget: Annotated[
        int | None,
        of_tuning(min=1, help="Candidates that --tune draws for each scheme from a finer grid; default: a small grid."),
    ] = None,
    settings: Settings = None,
    fresh: Annotated[bool, cli.of_measurement("--fresh", help="Measure the cells in --out again.")] = False,
    trust_tasks: cli.TrustTasks = False,
    dtype: cli.Dtype = None,
    device: cli.Device = None,
    config: ConfigFile = None,
    as_json: cli.AsJson = False,
) -> None:
    """Compare schemes on your own models.

    Each scheme on each task at each length is a cell, stored as soon as it is measured: after an interruption, the same
    command resumes. The exit code is 3 where a scheme was refused, 1 where a cell failed.
    """
    from hf_posenc.eval import compare as run
    from hf_posenc.eval.settings import CompareSettings

    run_settings, other = measured_settings(context, CompareSettings)
    loading: dict[str, Any] = {"batch_size": other.get("batch_size", 1)}
    if device is not None:
        loading["device"] = device
    models = [measured_model(name, other.get("base"), dtype, loading) for name in dict.fromkeys(model)]
    command = cli.command_line(context)
    with resume_hint(context), output.progress() as progress:
        comparison = run(models, ",".join(schemes), out=out, settings=run_settings, command=command, progress=progress)
    finish(comparison, out, as_json)


def measured_model(name: str, base: str | None, dtype: str | None, loading: dict[str, Any]) -> MeasuredModel:
    """Resolve one ``--model``, with the arguments that load it."""
    from hf_posenc.eval import MeasuredModel

    named = cli.model_named(name, base)
    arguments = {"dtype": cli.dtype_of(named, dtype), **loading}
    if base is None:
        return MeasuredModel(named.adapter or named.model, name, arguments=arguments)  # an adapter names its base
    return MeasuredModel(named.model, name, arguments=arguments | {"peft": named.adapter})


def finish(comparison: Comparison, out: Path, as_json: bool) -> None:
    """Show a comparison, and exit with the code that says whether all cells were measured."""
    if as_json:
        from hf_posenc.eval.results.ranking import results_of

        output.show_json(results_of(comparison))
    else:
        show(comparison, out)
    if comparison.with_state("failed"):
        raise Exit(FAILED)
    if comparison.with_state("refused"):
        raise Exit(PARTLY)


def show(comparison: Comparison, out: Path) -> None:
    """Show one table per task, what was refused or failed, and the files written."""
    from hf_posenc.eval.report.remarks import remarks, verdict
    from hf_posenc.eval.report.tables import cost_table, legend, summaries, value_table

    if conclusion := verdict(comparison):
        output.show_text(conclusion)
    for task in comparison.tasks():
        for metric in comparison.metrics(task)[:1]:
            table = value_table(comparison, task, metric)
            output.show_table(table.head, table.lines, title=f"{task}: {table.caption}")
    if comparison.rows:
        output.show_text("± is one standard error over documents.")
    if marks := legend(comparison):
        output.show_text(marks)
    tables = summaries(comparison)
    if comparison.rows:
        tables.append(cost_table(comparison))
    for table in tables:
        output.show_table(table.head, table.lines, title=table.caption)
        if table.note:
            output.show_text(table.note)
    for remark in remarks(comparison):
        output.show_text(remark)
    output.show_text(f"Written to {out}: {FILES}")


def demo(
    context: Context,
    out: Annotated[Path, Option(help="Folder of the results; the same command resumes there.")] = Path("results/demo"),
    quick: Annotated[bool, Option("--quick", help="Fewer schemes, lengths and samples; some 20 seconds.")] = False,
    as_json: cli.AsJson = False,
) -> None:
    """Compare schemes on a small trained Llama.

    Each scheme is measured at up to eight times the trained length, with one factor for all lengths. This takes under
    four minutes and no network. For your own models, use hf-posenc compare.
    """
    from hf_posenc.eval import compare

    with resume_hint(context), output.progress() as progress:
        comparison = compare(
            "starter:llama", out=out, dtype="float32", against="unpatched", command=cli.command_line(context),
            progress=progress, **(QUICK if quick else FULL),
        )  # fmt: skip
    finish(comparison, out, as_json)
