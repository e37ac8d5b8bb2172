"""``--set NAME=VALUE`` of ``hf-posenc finetune``: settings of a run that have no option of their own.

They are the fields of `hf_posenc.training.Training`, which checks them, and those of `Reading`. A ``--config`` file
names them beside the options, or in a mapping ``set``; the command line overrides them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from typer import Context

from hf_posenc.cli.arguments import is_given, words_of
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.cli.text_arguments import FIELD, unescaped
from hf_posenc.core.lengths import tokens
from hf_posenc.errors import nearest, shown
from hf_posenc.schemes.entry import json_or_text

OPTIONS = ("method", "steps", "learning_rate")
"""Settings that have an option of their own."""
NAME, LISTS, LENGTHS = "settings", ("target_modules", "report_to", "eval_lengths"), ("length", "trained_length")


@dataclass(frozen=True)
class Reading:
    """How the texts of a run are read, and what the model was trained on where its configuration is wrong."""

    text_field: str = FIELD
    document_separator: str | None = None
    streaming: bool = False
    trained_length: int | None = None

    def words(self) -> list[str]:
        """The options that have another command read the same texts."""
        own = {"text_field": None if self.text_field == FIELD else self.text_field}
        own["document_separator"] = self.document_separator
        return [word for name, value in own.items() if value is not None for word in ("--set", f"{name}={value}")]


def run_settings(context: Context) -> tuple[dict[str, Any], Reading]:
    """What the command line and its file ask for, by the names of fields; nothing of what they leave out."""
    given, reading = parsed(merged_settings(context))
    own = {name: context.params[name] for name in OPTIONS if context.params[name] is not None}
    return given | own, reading


def merged_settings(context: Context) -> list[str]:
    """The words of ``--set``: those of the command line after those of the file, also where the command is written.

    ``steps`` on the command line replace ``epochs`` of the file, and the other way round.
    """
    of_file = list((context.default_map or {}).get(NAME) or ())
    given = list(context.params.get(NAME) or ()) if is_given(context, NAME) else []
    if any(word.startswith("epochs=") for word in given) and not is_given(context, "steps"):
        context.params["steps"] = None
    elif is_given(context, "steps"):
        of_file = [word for word in of_file if not word.startswith("epochs=")]
    last = {word.partition("=")[0]: word for word in (*of_file, *given)}
    context.params[NAME] = list(last.values())
    return context.params[NAME]


def parsed(words: Sequence[str]) -> tuple[dict[str, Any], Reading]:
    """Parse ``["rank=8", "eval_lengths=1k,2k"]``: settings of `Training`, which checks them, and of `Reading`.

    Lengths are tokens, such as 2k; lists have commas; any other value is JSON, or text.

    Raises:
        BadArgument: a word has no ``=``, or names no setting.
        LengthContradiction: a length is none.
    """
    from hf_posenc.training import Training

    known = [field.name for field in (*fields(Training), *fields(Reading))]
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        if not (name and equals):
            raise BadArgument(f"--set takes NAME=VALUE, got {word!r}. Write for example --set rank=8.")
        if name not in known:
            raise BadArgument(
                f"--set {word} names no setting: there is no {shown(name)}.{nearest(name, known)} "
                f"Choose one of {', '.join(known)}."
            )
        if name in LISTS:
            several = words_of([value.strip("[]")])
            found[name] = tuple(tokens(one, name) if name == "eval_lengths" else one.strip("\"' ") for one in several)
        else:
            found[name] = tokens(value, name) if name in LENGTHS else json_or_text(value)
    own = {field.name: found.pop(field.name) for field in fields(Reading) if field.name in found}
    separator = own.get("document_separator")
    reading = Reading(**own)
    if not isinstance(reading.streaming, bool):
        raise BadArgument(f"--set streaming={reading.streaming} is neither true nor false. Write one of the two.")
    return found, reading if separator is None else replace(reading, document_separator=unescaped(str(separator)))
