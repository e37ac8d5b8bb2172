"""Options of ``eval`` and ``compare``, and the settings that they make with those of ``--set`` and ``--config``."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Context, Option

from hf_posenc.cli.arguments import is_given
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.text_arguments import FIELD, check_reading, two_sources

if TYPE_CHECKING:
    from hf_posenc.eval.settings import Measurement

MEASUREMENT, TUNING = "Measurement", "Choice of options"
"""Headings of options in the help."""
Own = TypeVar("Own", bound="Measurement")
Lengths = Annotated[
    list[str] | None,
    Option(
        "--lengths",
        "-l",
        help="Sequence lengths in tokens, as in 256,512 or 4k; default: multiples of the trained length.",
        rich_help_panel=MEASUREMENT,
    ),
]
Tasks = Annotated[
    list[str] | None,
    Option(
        "--tasks",
        "-t",
        help="lm-eval tasks or groups; default: loss and passkey retrieval.",
        rich_help_panel=MEASUREMENT,
    ),
]
Samples = Annotated[
    int | None, Option(min=1, help="Windows of text at each length; default: 16.", rich_help_panel=MEASUREMENT)
]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting, such as keys=8, scored=64, depths=[0,0.5,1], seed=1, limit=4, longest=8192, "
        "text_field=body or batch_size=2; or an option of a task, such as data=FILE or scoring=generate. May be "
        "repeated.",
        rich_help_panel=MEASUREMENT,
    ),
]


def measured_settings(
    context: Context, kind: type[Own], others: Collection[str], **given: Any
) -> tuple[Own, dict[str, Any]]:
    """The settings of a command, and the values of ``--set`` that are none of them.

    Args:
        context: of the command, with ``--set``.
        kind: of the settings.
        others: names that ``--set`` may have besides them.
        **given: settings that have an option of their own; None and empty lists leave them at their defaults.

    Raises:
        PosEncError: a setting is refused, or none of the tasks reads it.
        BadArgument: a word of ``--set`` has no ``=``, or options of reading are given, and no text.
    """
    from hf_posenc.eval.catalogue import TASKS_READING, check_settings_read
    from hf_posenc.eval.settings import named

    own, options = named(kind, merged_words(context))
    other = {name: options.pop(name) for name in others if name in options}
    own |= {name: value for name, value in given.items() if value not in (None, [], (), False)}
    field, separator = own.pop("text_field", FIELD), own.pop("document_separator", None)
    check_reading([*(own.get("text") or ()), *(own.get("dev_text") or ())], field, separator)
    text, dev_text = two_sources(own.pop("text", None), own.pop("dev_text", None), field, separator)
    sources = {"text": text} | ({} if dev_text is None else {"dev_text": dev_text})
    settings = kind.of(own | sources | {"options": options})
    check_settings_read([name for name in TASKS_READING if name in own], settings.tasks)
    return settings, other


def merged_words(context: Context) -> list[str]:
    """The words of ``--set``: the command line's, and those of ``--config`` whose names it does not have.

    They take the place of the former in the context, so that the command is written as it runs without the file.

    Raises:
        BadArgument: one has no ``=``.
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
