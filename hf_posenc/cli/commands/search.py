"""``hf-posenc search``: the scheme and options with the lowest loss at a length, within a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson, Base, Device, Dtype, Model, command_line, dtype_of, model_named
from hf_posenc.cli.output_paths import check_output_folder
from hf_posenc.cli.resume_hint import resume_hint
from hf_posenc.cli.text_arguments import (
    FIELD,
    SOURCES,
    DocumentSeparator,
    TextField,
    check_reading,
    two_sources,
)

if TYPE_CHECKING:
    from hf_posenc.texts import TextSource


def search(
    context: Context,
    model: Model,
    target: Annotated[
        str,
        Option(
            "--target-length",
            metavar="TOKENS",
            help="Context length in tokens, such as 2048 or 8k; k = 1024.",
        ),
    ],
    budget: Annotated[
        str, Option(metavar="TIME", help="Wall-clock time, such as 10m, 90s or 1h30m; one too small is refused.")
    ] = "10m",
    text: Annotated[
        list[str] | None,
        Option(help=f"Text to choose on: {SOURCES}; default: held-out sources of the standard library."),
    ] = None,
    eval_text: Annotated[
        list[str] | None,
        Option(help=f"Text to judge the choice by: {SOURCES}; default: the last third of --text, set aside."),
    ] = None,
    text_field: TextField = FIELD,
    document_separator: DocumentSeparator = None,
    all_keys: Annotated[
        bool, Option("--all-keys", help="Leave out schemes that hide or evict keys, such as window and sinks.")
    ] = False,
    out: Annotated[Path, Option(help="Folder of the results; the same command resumes there.")] = Path(
        "results/search"
    ),
    seed: Annotated[int, Option(min=0, help="Random seed of windows, and of the order of options.")] = 0,
    base: Base = None,
    dtype: Dtype = None,
    device: Device = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Write nothing but the result and errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the zero-shot scheme and options with the lowest loss at a target length.

    Options are tried on one text by successive halving, and the choice is judged on another. Finished cells are kept:
    after an interruption, the same command resumes; repeated, it measures nothing.
    """
    from hf_posenc.insight.search import search as run

    check_output_folder("--out", out)
    named = model_named(model, base)
    check_reading(text or eval_text, text_field, document_separator)
    own_text, other = two_sources(text, eval_text, text_field, document_separator)
    loading: dict[str, Any] = {"dtype": dtype_of(named, dtype)} | ({} if device is None else {"device": device})
    loaded = {"--base": base, "--dtype": dtype, "--device": device}
    if base is not None:
        loading["peft"] = named.adapter
    judged = (eval_text, other) if eval_text else (text, own_text)  # without a second text, the end of the first
    with resume_hint(context), output.progress(quiet) as progress:
        found = run(
            named.model if base is not None else named.adapter or named.model, target, budget=budget, out=out,
            text=own_text, eval_text=other, all_keys=all_keys, seed=seed, name=model,
            command=command_line(context), compare=compare_words(loaded, *judged, document_separator),
            progress=progress, **loading,
        )  # fmt: skip
    if as_json:
        output.show_json(found.to_dict())
    else:
        output.show_text(f"{found}\n\nAll arms, the picture and the data: {out}")


def compare_words(
    loaded: dict[str, str | None], names: list[str] | None, read: TextSource | None, separator: str | None
) -> list[str]:
    """Words of `hf-posenc compare` that load the same model and read the text that the choice is judged on.

    Args:
        loaded: options that load the model, as given.
        names: of the text.
        read: that text, with the options of reading that fit it.
        separator: of documents, as given.
    """
    given = [(name, value) for name, value in loaded.items() if value is not None]
    given += [("--text", name) for name in names or ()]
    if read is not None and read.field != FIELD:
        given.append(("--text-field", read.field))
    if read is not None and read.separator is not None and separator is not None:
        given.append(("--document-separator", separator))
    return [word for pair in given for word in pair]
