"""``hf-posenc leaderboard``: schemes ranked on models by effective context length, loss, retrieval and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import MOST_THREADS, AsJson, Device, Dtype, command_line, depths_of, lengths_of, words_of
from hf_posenc.cli.commands.compare import Quiet, measured_model
from hf_posenc.cli.errors import FAILED
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.resume_hint import resume_hint
from hf_posenc.cli.task_arguments import FactorPerLength, Keys, Samples, Scored, check_settings
from hf_posenc.cli.text_arguments import FIELD, DocumentSeparator, Text, TextField, check_reading, text_source

if TYPE_CHECKING:
    from hf_posenc.insight.leaderboard import Leaderboard

STARTERS = "starter:llama,starter:gpt2,starter:bert"
FILES = "page.html, leaderboard.json, .csv, .tex and .md, and pictures (.png, .pdf, .svg)"
QUICK: dict[str, Any] = {"samples": 4, "keys": 4, "rounds": 3}
"""Settings of a quick look, where no others are given."""


def leaderboard(
    context: Context,
    models: Annotated[
        list[str] | None,
        Option("--models", "-m", help=f"Folders, hub names, starters; default: {STARTERS}."),
    ] = None,
    schemes: Annotated[
        list[str] | None,
        Option(
            "--schemes", "-s",
            help="As in compare; default: all that can be used on the model without training.",
        ),
    ] = None,
    lengths: Annotated[
        list[str] | None,
        Option("--lengths", "-l", help="Tokens, as in 256,512; default: 1, 2, 4 times the trained length."),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        Option("--tasks", "-t", help="Tasks that sweep over lengths; default: loss and passkey retrieval."),
    ] = None,
    out: Annotated[
        Path, Option("--out", help="Folder of the results; the same command resumes there.")
    ] = Path("results/leaderboard"),
    quick: Annotated[
        bool, Option("--quick", help="A quick look: 4 windows, 4 keys and 3 timings, unless others are given.")
    ] = False,
    samples: Samples = 16,
    scored: Scored = 64,
    keys: Keys = 24,
    depths: Annotated[str, Option(help="Relative depths of the key in the filler text, 0 to 1.")] = "0.25",
    text: Text = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    seed: Annotated[int, Option(min=0, help="Random seed of passkeys, windows and bootstrap.")] = 0,
    factor_per_length: FactorPerLength = False,
    rounds: Annotated[int, Option(min=1, help="Pairs of time measurements.")] = 7,
    threads: Annotated[int, Option(min=1, max=MOST_THREADS, help="CPU threads, while time is measured.")] = 1,
    dtype: Dtype = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Rank schemes on models: effective context length, loss, retrieval, time and memory.

    Every scheme is patched once, for the longest length, and measured at all lengths with that factor, unless
    --factor-per-length is given. Scores are cells of compare, kept in --out: after an interruption, the same command
    resumes. Beside each cell stands the
    command that measures it again. Schemes that need training are left out, and listed. The exit code is 1 where a cell
    failed.
    """
    from hf_posenc.insight.leaderboard import leaderboard as run

    check_output_folder("--out", out)
    check_settings(context, words_of(tasks))
    check_reading(text, text_field, document_separator)
    loading: dict[str, Any] = {"batch_size": 1} | ({} if device is None else {"device": device})
    named = words_of(models) or words_of([STARTERS])
    measured = [measured_model(name, None, dtype, loading) for name in dict.fromkeys(named)]
    chosen: dict[str, Any] = {"samples": samples, "keys": keys, "rounds": rounds}
    if quick:
        chosen |= {name: value for name, value in QUICK.items() if is_default(context, name)}
    with resume_hint(context), output.progress(quiet) as progress:
        board = run(
            measured, out=out, schemes=",".join(schemes) if schemes else None,
            lengths=lengths_of("--lengths", lengths), tasks=words_of(tasks), scored=scored,
            depths=depths_of(depths), text=text_source(text, text_field, document_separator), seed=seed,
            factor_per_length=factor_per_length, threads=threads, command=command_line(context),
            progress=progress, **chosen,
        )  # fmt: skip
    if as_json:
        output.show_json(board.to_dict())
    elif not quiet:
        show(board, out)
    if any(score.state == "failed" for line in board.lines for score in line.scores):
        raise Exit(FAILED)


def is_default(context: Context, name: str) -> bool:
    """Whether an option was left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT"


def show(board: Leaderboard, out: Path) -> None:
    """Show a table for each task of each model, and the files written."""
    from hf_posenc.eval.report.phrases import model_title
    from hf_posenc.insight.leaderboard.words import RULES, caption, cells, columns, factor_sentence, heading

    models = {model["name"]: model for model in board.about["models"]}
    for (name, task), lines in board.tables().items():
        rows = [cells(line, lines) for line in lines]
        output.show_table(columns(models[name], lines), rows, title=f"{heading(models[name], task)}, {caption(lines)}")
    for rule in (factor_sentence(board.about), *RULES):
        output.show_text(rule)
    for name, model in models.items():
        for remark in model["remarks"]:
            output.show_text(f"{model_title(name)}: {remark}")
    output.show_text(f"Written to {out}: {FILES}")
