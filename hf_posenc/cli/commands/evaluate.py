"""``hf-posenc eval``: measure one model at several sequence lengths."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import (
    AsJson,
    Base,
    Device,
    Dtype,
    Factor,
    Longest,
    Model,
    SchemeOptions,
    TargetLength,
    TrustTasks,
    depths_of,
    dtype_of,
    lengths_of,
    model_named,
    scheme_options,
    words_of,
)
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.output_paths import check_replaces_results
from hf_posenc.cli.task_arguments import (
    DEPTHS,
    Data,
    Depths,
    IncludePath,
    Keys,
    Limit,
    Metadata,
    Samples,
    Scored,
    check_settings,
    task_options,
)
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, Text, TextField, check_reading, text_source

COLUMNS = ("scheme", "task", "length", "depth", "metric", "value", "stderr", "n", "clusters")


def evaluate(
    context: Context,
    model: Model,
    scheme: Annotated[
        str | None, Option("--scheme", "-s", help="Scheme to patch in first; default: leave the model unchanged.")
    ] = None,
    factor: Factor = None,
    target_length: TargetLength = None,
    length: Annotated[
        list[str] | None,
        Option(
            "--lengths",
            "-l",
            help="Sequence lengths in tokens, as in 256,512; default: the trained length, its doublings, the target.",
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        Option("--tasks", "-t", help="lm-eval tasks or groups; default: loss and passkey retrieval."),
    ] = None,
    longest: Longest = None,
    samples: Samples = 16,
    scored: Scored = 64,
    keys: Keys = 8,
    depths: Depths = DEPTHS,
    limit: Limit = None,
    data: Data = None,
    metadata: Metadata = None,
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    seed: Annotated[int, Option(min=0, help="Random seed of passkeys, masks and places of windows.")] = 0,
    out: Annotated[Path | None, Option(help="Also write the rows and lm-eval's results to this JSON file.")] = None,
    num_fewshot: Annotated[int | None, Option(min=0, help="Examples before each question of lm-eval's tasks.")] = None,
    apply_chat_template: Annotated[
        bool, Option("--apply-chat-template", help="Write the prompts of lm-eval's tasks as a conversation.")
    ] = False,
    fewshot_as_multiturn: Annotated[
        bool, Option("--fewshot-as-multiturn", help="Make each example a turn of the conversation.")
    ] = False,
    system_instruction: Annotated[str | None, Option(help="Text before every prompt of lm-eval's tasks.")] = None,
    gen_kwargs: Annotated[
        str | None, Option(metavar="NAME=VALUE,…", help="How to generate, as max_gen_toks=20,temperature=0.")
    ] = None,
    log_samples: Annotated[
        bool, Option("--log-samples", help="Keep every request and response in the file of --out.")
    ] = False,
    include_path: IncludePath = None,
    trust_tasks: TrustTasks = False,
    base: Base = None,
    dtype: Dtype = None,
    device: Device = None,
    batch_size: Annotated[str, Option("--batch-size", help="Requests per forward pass, or auto.")] = "1",
    option: SchemeOptions = None,
    as_json: AsJson = False,
) -> None:
    """Measure a model at several sequence lengths, through lm-eval.

    By default the cross-entropy loss of the same last tokens at every length, and passkey retrieval. Any task of
    lm-eval can be named, RULER's among them, whose lengths are those of --lengths.
    """
    from hf_posenc.eval import evaluate as measure

    patch = {"factor": factor, "target_length": target_length, **scheme_options(scheme, option)}
    loading = {"device": device, "batch_size": int(batch_size) if batch_size.isdigit() else batch_size}
    given: dict[str, Any] = {name: value for name, value in (patch | loading).items() if value is not None}
    lengths, tasks = lengths_of("--lengths", length), words_of(task)
    check_settings(context, tasks)
    check_reading(text, text_field, document_separator)
    own_text = text_source(text, text_field, document_separator)
    options, given_depths = task_options(context, metadata, data), depths_of(depths)
    named, requests = model_named(model, base), count(1)
    if out is not None:
        check_replaces_results(out)
    elif log_samples:
        raise BadArgument("--log-samples keeps requests and responses in a file, and none is named. Pass --out FILE.")
    with output.progress() as progress:
        evaluation = measure(
            named.model, peft=named.adapter, scheme=scheme, lengths=lengths or None, tasks=tasks or None,
            samples=samples, scored=scored, text=own_text, keys=keys, depths=given_depths, longest=longest, seed=seed,
            limit=limit, metadata=options,
            num_fewshot=num_fewshot, apply_chat_template=apply_chat_template,
            fewshot_as_multiturn=fewshot_as_multiturn, system_instruction=system_instruction, gen_kwargs=gen_kwargs,
            log_samples=log_samples, include_path=include_path, trust_tasks=trust_tasks,
            dtype=dtype_of(named, dtype),
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
