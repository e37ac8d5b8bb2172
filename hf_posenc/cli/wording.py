"""Say the errors and warnings of the library in the words of the command line: options in place of Python calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hf_posenc.cli import output

INSTEAD_OF_EXPORT = "The other commands of hf-posenc take this checkpoint as it is."
PHRASES = {
    "Save it with model.save_pretrained and load it with hf_posenc.from_pretrained.": INSTEAD_OF_EXPORT,
    "Save the model with model.save_pretrained and load it with hf_posenc.from_pretrained.": INSTEAD_OF_EXPORT,
    "Load it with hf_posenc.from_pretrained wherever it is used.": "Name the adapter itself as --model instead.",
    ", or save with model.save_pretrained and load with hf_posenc.from_pretrained.": ".",
    "Give more text, or shorter rows.": "Give more --text, or a shorter --length.",
    "Give a longer text, shorter lengths or fewer samples.": "Give a longer --text, shorter --lengths or fewer "
    "--samples.",
    "Pass one of them: model.get_encoder() or model.get_decoder().": "The command line takes models of one stack; "
    "in Python, pass model.get_encoder() or model.get_decoder().",
    "Pass factor= or target_length=.": "Pass --factor or --target-length.",
    " (resume=True)": "",
    "resume=True (on the command line --resume)": "--resume",
    "scheme= (on the command line --scheme)": "--scheme",
    "Install or import the package that registers it, or update hf_posenc.": "Name the file that registers it with "
    "--import, install its package, or update hf_posenc.",
    "`hf-posenc list` shows all of them.": "`hf-posenc list` shows all of them; --import FILE adds your own.",
    "unpatch_model removes the scheme.": "hf-posenc compare measures other schemes on the same weights.",
}
"""What the library says → what the command line says."""


def in_options(error: BaseException) -> str:
    """The message of an error of the library, with options of commands in place of arguments of functions."""
    return of_text(str(error))


def of_text(text: str) -> str:
    """A text with the phrases of the command line."""
    for said, meant in PHRASES.items():
        text = text.replace(said, meant)
    return text


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings of the library on stderr as remarks, without the line of code that raised them."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if category.__module__.startswith("hf_posenc"):
                output.note(f"Warning: {of_text(str(message))}")
            else:
                before(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield
