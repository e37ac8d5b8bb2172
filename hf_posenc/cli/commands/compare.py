"""``hf-posenc compare``: several schemes on one model, task by task and length by length."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Device,
    Dtype,
    Longest,
    TrustTasks,
    check_unread,
    command_line,
    depths_of,
    dtype_of,
    lengths_of,
    model_named,
    words_of,
)
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.commands.compare_result import finish
from hf_posenc.cli.config_file import ConfigFile
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.resume_hint import resume_hint
from hf_posenc.cli.task_arguments import (
    DEPTHS,
    Data,
    Depths,
    FactorPerLength,
    IncludePath,
    Keys,
    Limit,
    Metadata,
    Samples,
    Scored,
    check_settings,
    task_options,
)
from hf_posenc.cli.text_arguments import (
    FIELD,
    SOURCES,
    DocumentSeparator,
    Text,
    TextField,
    check_reading,
    two_sources,
)

if TYPE_CHECKING:
    from hf_posenc.eval import Comparison, MeasuredModel

Models = Annotated[
    list[str] | None,
    Option(
        "--model",
        "-m",
        help="Folder of a model, a PEFT adapter or a fine-tuning run; hub name; starter:llama; may be repeated.",
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Write nothing but errors to the screen.")]


def compare(
    context: Context,
    model: Models = None,
    schemes: Annotated[
        list[str] | None,
        Option(
            "--schemes",
            "-s",
            help="yarn,self_extend:group=8,window=128,unpatched; may be repeated. unpatched is the baseline.",
        ),
    ] = None,
    merged: Annotated[
        list[Path] | None,
        Option("--merge", metavar="FOLDER", help="Folder of an earlier run; repeat it, to merge runs into --out."),
    ] = None,
    lengths: Annotated[
        list[str] | None,
        Option(
            "--lengths",
            "-l",
            help="Sequence lengths in tokens, as in 256,512; default: 1, 2, 4 times the trained length.",
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        Option("--tasks", "-t", help="lm-eval tasks or groups; default: loss and passkey retrieval."),
    ] = None,
    out: Annotated[Path, Option(help="Folder of the results; the same command resumes there.")] = Path(
        "results/compare"
    ),
    samples: Samples = 16,
    scored: Scored = 64,
    keys: Keys = 8,
    depths: Depths = DEPTHS,
    data: Data = None,
    metadata: Metadata = None,
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    seed: Annotated[int, Option(min=0, help="Random seed of passkeys, masks and learned schemes.")] = 0,
    limit: Limit = None,
    factor_per_length: FactorPerLength = False,
    longest: Longest = None,
    against: Annotated[
        str | None,
        Option(help="Scheme that the others are compared with, document by document: sure differences are marked."),
    ] = None,
    tune: Annotated[
        bool, Option("--tune", help="Choose the options of schemes on --dev-text, which is never the measured text.")
    ] = False,
    dev_text: Annotated[
        list[str] | None, Option("--dev-text", help=f"Development text, to choose options on: {SOURCES}.")
    ] = None,
    base: Base = None,
    dtype: Dtype = None,
    device: Device = None,
    batch_size: Annotated[int, Option("--batch-size", min=1, help="Requests of one length per forward pass.")] = 1,
    include_path: IncludePath = None,
    trust_tasks: TrustTasks = False,
    report_to: Annotated[
        list[str] | None, Option(help="Experiment tracker, such as trackio, wandb or tensorboard; may be repeated.")
    ] = None,
    config: ConfigFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare schemes on your own models.

    Each scheme on each task at each length is a cell, stored as soon as it is measured: after an interruption, the same
    command resumes. The exit code is 3 where a scheme was refused, 1 where a cell failed.
    """
    from hf_posenc.eval import compare as run
    from hf_posenc.eval.report.trackers import report_to_trackers
    from hf_posenc.training.config_checks import check_trackers

    check_output_folder("--out", out)
    if merged:
        check_alone("--merge", context, {"merged", "out", "against", "config", "quiet", "as_json"})
        finish(merge(merged, out, against, command_line(context)), out, quiet, as_json)
        return
    if not (model and schemes):
        raise BadArgument("A comparison needs --model and --schemes, or --merge with the folders of earlier runs.")
    if tune != bool(dev_text):
        raise BadArgument("--tune and --dev-text belong together: options are chosen on that text. Pass both, or none.")
    check_settings(context, words_of(tasks) or ())
    trackers = words_of(report_to) or []
    check_trackers(trackers)
    check_reading(text or dev_text, text_field, document_separator)
    own_text, development = two_sources(text, dev_text, text_field, document_separator)
    loading: dict[str, Any] = {"batch_size": batch_size} | ({} if device is None else {"device": device})
    models = [measured_model(name, base, dtype, loading) for name in dict.fromkeys(model)]
    options = task_options(context, metadata, data)
    chosen, given = lengths_of("--lengths", lengths), depths_of(depths)
    with resume_hint(context), output.progress(quiet) as progress:
        comparison = run(
            models, ",".join(schemes), out=out, lengths=chosen, tasks=words_of(tasks), samples=samples,
            scored=scored, keys=keys, depths=given, text=own_text, dev_text=development, seed=seed, limit=limit,
            factor_per_length=factor_per_length, longest=longest, against=against, include_path=include_path,
            trust_tasks=trust_tasks, options=options, command=command_line(context), progress=progress,
        )  # fmt: skip
    if trackers:
        report_to_trackers(comparison, trackers, out)
    finish(comparison, out, quiet, as_json)


def measured_model(given: str, base: str | None, dtype: str | None, loading: dict[str, Any]) -> MeasuredModel:
    """Resolve one ``--model`` with what it is loaded with."""
    from hf_posenc.eval import MeasuredModel

    named = model_named(given, base)
    arguments = {"dtype": dtype_of(named, dtype), **loading}
    if base is None:
        return MeasuredModel(named.adapter or named.model, given, arguments=arguments)  # an adapter names its base
    return MeasuredModel(named.model, given, arguments=arguments | {"peft": named.adapter})


def merge(runs: list[Path], out: Path, against: str | None, command: str) -> Comparison:
    """Merge earlier runs."""
    from hf_posenc.eval import merge_comparisons

    return merge_comparisons(runs, out=out, against=against, command=command)


def check_alone(option: str, context: Context, allowed: set[str]) -> None:
    """Refuse options that have no effect beside another one.

    Raises:
        BadArgument: there is one.
    """
    others = {str(parameter.name) for parameter in context.command.params} - allowed
    check_unread(context, others, f"has no effect beside {option}, which measures nothing. Leave it out.", in_file=True)
