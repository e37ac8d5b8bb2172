"""``--set NAME=VALUE``: settings of a command that have no option of their own, among them how texts are read.

A ``--config`` file names them beside the options, or in a mapping ``set``; the command line overrides them one by one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Context, Option

from hf_posenc.cli.arguments import (
    MEASUREMENT,
    is_given,
    of_measurement,
    of_text,
    words_of,
)
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.core.lengths import tokens
from hf_posenc.errors import nearest, shown
from hf_posenc.schemes.entry import json_or_text

if TYPE_CHECKING:
    from hf_posenc.eval.settings import Measurement
    from hf_posenc.texts import TextSource

SOURCES = "file, folder or hub:NAME:SPLIT; may be repeated"
LENGTHS, LISTS = ("length", "trained_length"), ("target_modules", "report_to", "eval_lengths")
"""Settings that are tokens, such as 2k, and those that are several values with commas."""
LOADING = ("base", "batch_size")
"""Names of ``--set`` besides the settings of a measurement."""
Own = TypeVar("Own", bound="Measurement")
Text = Annotated[
    list[str] | None, of_text(help=f"Text to measure on: {SOURCES}; default: held-out sources of the standard library.")
]
Lengths = Annotated[
    list[str] | None,
    of_measurement(
        "--lengths",
        "-l",
        help="Sequence lengths in tokens, as in 256,512 or 4k; default: multiples of the trained length.",
    ),
]
Tasks = Annotated[
    list[str] | None,
    of_measurement("--tasks", "-t", help="lm-eval tasks or groups; default: loss and passkey retrieval."),
]
Samples = Annotated[int | None, of_measurement(min=1, help="Windows of text at each length; default: 16.")]
TEXT_FIELD = "text_field"
"""A setting of how a text is read: its column in records."""


def set_option(what: str, heading: str = MEASUREMENT) -> Any:
    """The option ``--set``, with what it may set."""
    return Option("--set", metavar="NAME=VALUE", help=f"{what}. May be repeated.", rich_help_panel=heading)


Settings = Annotated[
    list[str] | None,
    set_option(
        "Any other setting, such as keys=8, scored=64, depths=[0,0.5,1], seed=1, limit=4, longest=8192, "
        "text_field=body or batch_size=2; or an option of a task, such as data=FILE or scoring=generate"
    ),
]


def text_sources(
    settings: dict[str, Any], *several: Sequence[str] | None, streaming: bool = False
) -> list[TextSource | None]:
    """The texts of a command that loads a model first, the first streamed or not; None in place of those not named.

    The column of records is taken out of the settings, where it must take effect on one of the texts.
    """
    from hf_posenc.errors import UnreadableDocuments
    from hf_posenc.texts import TextSource
    from hf_posenc.texts.document import TEXT

    field = settings.pop(TEXT_FIELD, TEXT)
    every = TextSource.of_names([name for given in several for name in given or ()], field=field)
    for part in every.parts:  # refused now, and not after a large model is loaded
        if isinstance(part, Path) and not os.path.exists(part.expanduser()):
            raise UnreadableDocuments(
                f"There is no file and no folder {shown(str(part))}. Check the path; a dataset is hub:NAME."
            )
    every.check_field()
    sources = [TextSource.of_names(list(given)) if given else None for given in several]
    return [
        source and replace(source, field=field if source.has_records else TEXT, streaming=streaming and number == 0)
        for number, source in enumerate(sources)
    ]


def settings_of(context: Context, known: Collection[str]) -> dict[str, Any]:
    """The values of ``--set`` by their names: lengths are tokens, lists have commas, any other is JSON or text."""
    found: dict[str, Any] = {}
    for word in merged_words(context):
        name, _, value = word.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise BadArgument(
                f"--set {word} names no setting: there is no {shown(name)}.{nearest(name, known)} "
                f"Choose one of {', '.join(known)}."
            )
        if name in LISTS:
            several = words_of([value.strip("[]")])
            found[name] = tuple(tokens(one, name) if name == "eval_lengths" else one.strip("\"' ") for one in several)
        elif name in LENGTHS:
            found[name] = tokens(value, name)
        else:
            found[name] = value if name == TEXT_FIELD else json_or_text(value)
    return found


def measured_settings(context: Context, kind: type[Own], **given: Any) -> tuple[Own, dict[str, Any]]:
    """The settings of ``eval`` or ``compare``, and the values of ``--set`` that say how models are loaded."""
    from hf_posenc.eval.catalogue import SETTINGS, check_settings_read
    from hf_posenc.eval.settings import named

    own, options = named(kind, merged_words(context))
    other = {name: options.pop(name) for name in LOADING if name in options}
    own |= {name: value for name, value in given.items() if value not in (None, [], (), False)}
    settings = kind.of(own | {"options": options})
    check_settings_read([name for name in SETTINGS if name in own], settings.tasks)
    return settings, other


def merged_words(context: Context) -> list[str]:
    """The words of ``--set``: the command line's, and those of ``--config`` whose names it does not have.

    They take the place of the former in the context, so that the command is written as it runs without the file.
    """
    given = list(context.params["settings"] or ()) if is_given(context, "settings") else []
    names = {word.partition("=")[0].replace("-", "_") for word in given}
    of_file = [str(word) for word in (context.default_map or {}).get("settings") or ()]
    words = [word for word in of_file if word.partition("=")[0].replace("-", "_") not in names] + given
    for word in words:
        if not all(word.partition("=")[:2]):
            raise BadArgument(f"--set takes NAME=VALUE, got {word!r}. Write for example --set seed=1.")
    context.params["settings"] = words
    return words
