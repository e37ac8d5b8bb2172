"""``--set NAME=VALUE``: settings of a command that have no option of their own, such as the column of a text.

A ``--config`` file sets them beside the options, or in a mapping ``set``. The command line overrides each by name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Context, Option

from hf_posenc.cli.arguments import MEASUREMENT, is_given, of_measurement, of_text, words_of
from hf_posenc.core.lengths import tokens
from hf_posenc.errors import UnknownOption, nearest, shown
from hf_posenc.schemes.entry import json_or_text

if TYPE_CHECKING:
    from hf_posenc.eval.settings import Measurement
    from hf_posenc.texts import TextSource

SOURCES = "file, folder or hub:NAME:SPLIT; may be repeated"
LENGTHS, LISTS = ("length", "trained_length"), ("target_modules", "report_to")
"""Settings that are lengths in tokens, such as 2k, and settings that are lists with commas."""
LOADING = ("base", "batch_size")
"""Names of ``--set`` that affect how a model is loaded."""
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
"""Setting of a text: the column of its records."""


def set_option(what: str, heading: str = MEASUREMENT) -> Any:
    """Build the option ``--set``; ``what`` describes the settings."""
    return Option("--set", metavar="NAME=VALUE", help=f"{what}. May be repeated.", rich_help_panel=heading)


Settings = Annotated[
    list[str] | None,
    set_option(
        "Any other setting, such as keys=8, scored=64, depths=[0,0.5,1], seed=1, limit=4, longest=8192, "
        "text_field=body or batch_size=2; or an option of a task, such as data=FILE or scoring=generate"
    ),
]


def text_sources(settings: dict[str, Any], *texts: Sequence[str] | None) -> list[TextSource | None]:
    """Check the texts of a command before a model is loaded; None for each that is not named.

    The column of records is removed from ``settings``; one text must have records.
    """
    from hf_posenc.errors import UnreadableDocuments
    from hf_posenc.texts import TextSource
    from hf_posenc.texts.document import TEXT

    field = settings.pop(TEXT_FIELD, TEXT)
    all_texts = TextSource.of_names([name for names in texts for name in names or ()], field=field)
    for part in all_texts.parts:  # refused now, not after a large model is loaded
        if isinstance(part, Path) and not os.path.exists(part.expanduser()):
            raise UnreadableDocuments(
                f"There is no file and no folder {shown(str(part))}. Check the path; a dataset is hub:NAME."
            )
    all_texts.check_field()
    sources = [TextSource.of_names(list(names), field=field) if names else None for names in texts]
    return [replace(one, field=TEXT) if one is not None and not one.has_records else one for one in sources]


def settings_of(context: Context, known: Collection[str]) -> dict[str, Any]:
    """Parse the values of ``--set`` by name: lengths in tokens, lists with commas, others as JSON or text."""
    settings: dict[str, Any] = {}
    for word in merged_words(context):
        given, _, value = word.partition("=")
        name = setting_name(given)
        if name not in known:
            raise UnknownOption(
                f"There is no setting {shown(name)}.{nearest(name, known)} Choose one of {', '.join(known)}."
            )
        items = words_of([value.strip("[]")])
        if name == "eval_lengths":
            settings[name] = tuple(tokens(item, name) for item in items)
        elif name in LISTS:
            settings[name] = tuple(item.strip("\"' ") for item in items)
        elif name in LENGTHS:
            settings[name] = tokens(value, name)
        else:
            settings[name] = value if name == TEXT_FIELD else json_or_text(value)
    return settings


def measured_settings(context: Context, kind: type[Own]) -> tuple[Own, dict[str, Any]]:
    """Return the settings of ``eval`` or ``compare``, and the values of ``--set`` about loading models.

    Parameters of the command that have the name of a setting override ``--set``.
    """
    from hf_posenc.eval.catalogue import SETTINGS, check_settings_read
    from hf_posenc.eval.settings import named

    own, options = named(kind, merged_words(context))
    other = {setting_name(key): options.pop(key) for key in list(options) if setting_name(key) in LOADING}
    given = {name: value for name, value in context.params.items() if name in kind.model_fields}
    given |= {name: words_of(given[name]) for name in ("tasks", "lengths")}
    own |= {name: value for name, value in given.items() if value not in (None, [], (), False)}
    settings = kind.of(own | {"options": options})
    check_settings_read([name for name in SETTINGS if name in own], settings.tasks)
    return settings, other


def merged_words(context: Context) -> list[str]:
    """Merge the words of ``--set`` with those of ``--config``; the command line overrides by name.

    The context gets the merged words, so that `command_line` repeats the command without the file.
    """
    typed = list(context.params["settings"] or ()) if is_given(context, "settings") else []
    names = set(map(setting_name, typed))
    of_file = [str(word) for word in (context.default_map or {}).get("settings") or ()]
    words = [word for word in of_file if setting_name(word) not in names] + typed
    for word in words:
        if not all(word.partition("=")[:2]):
            raise UnknownOption(
                f"A setting has a name and a value, NAME=VALUE, got {shown(word)}. Write for example seed=1."
            )
    context.params["settings"] = words
    return words


def setting_name(word: str) -> str:
    """Name of a setting in Python, from ``batch-size`` or ``batch-size=2``."""
    return word.partition("=")[0].replace("-", "_")
