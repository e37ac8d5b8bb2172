"""Parse the arguments of ``hf-posenc show``: schemes with options, channels, file names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_posenc.cli.arguments import words_of
from hf_posenc.cli.global_options import BadArgument
from hf_posenc.core.files.paths import slug
from hf_posenc.errors import UnknownOption, nearest

if TYPE_CHECKING:
    from hf_posenc.insight.plots.compose import PlotRequest
    from hf_posenc.insight.plots.models import Shapes
    from hf_posenc.insight.plots.registry import Plot
    from hf_posenc.schemes.entry import Entry

SHAPES = ("kind", "heads", "head_dim", "width", "layers")


def entries_with(schemes: Sequence[str], words: Sequence[str] | None) -> list[Entry]:
    """Parse the schemes, and give each those ``--option``s that it takes.

    Raises:
        UnknownOption: none of the schemes takes an option.
        PosEncError: a scheme or an option is refused.
    """
    from hf_posenc.schemes.entry import entries_of, read_word
    from hf_posenc.schemes.spec import option_names_of, parts_of_spec

    entries = entries_of(",".join(schemes))
    options = read_word("--option", list(words or ())).options
    known = [
        {} if e.scheme is None else {n for cls, _ in parts_of_spec(e.scheme) for n in option_names_of(cls)}
        for e in entries
    ]
    for name in options:
        if not any(name in names for names in known):
            every = sorted({one for names in known for one in names})
            raise UnknownOption(
                f"None of these schemes has an option {name!r}.{nearest(name, every)} "
                f"They take {', '.join(every) or 'none'}."
            )
    return entries_of(
        replace(entry, options={**entry.options, **{n: v for n, v in options.items() if n in names}})
        for entry, names in zip(entries, known, strict=True)
    )


def channels_of(given: str | None) -> tuple[int, ...] | None:
    """Parse channel numbers: ``"0,8,16"`` or ``"0:16"``.

    Raises:
        BadArgument: the text is neither a list nor a range.
    """
    if given is None:
        return None
    found = re.fullmatch(r"(\d+):(\d+)", given)
    if found:
        numbers = tuple(range(int(found[1]), int(found[2])))
    else:
        numbers = tuple(int(word) for word in words_of([given]) if word.isascii() and word.isdigit())
        numbers = numbers if len(numbers) == len(words_of([given])) else ()
    if not numbers:
        raise BadArgument(f"--channels takes numbers as in 0,8,16 or a range as in 0:16, got {given!r}. Write one.")
    return numbers


def choice(option: str, given: str, known: Sequence[str]) -> str:
    """Check that an option has one of a few values.

    Raises:
        BadArgument: it has another.
    """
    if given not in known:
        raise BadArgument(f"{option} is one of {', '.join(known)}, got {given!r}.{nearest(given, known)}")
    return given


def file_name(request: PlotRequest, plots: Sequence[Plot]) -> str:
    """Build a file name such as ``rope-yarn-frequencies``: the schemes, and the plot where there is only one."""
    labels = "-".join(entry.label for entry in request.entries)
    plain = slug(re.sub(r"[:,;]", "-", labels))
    return f"{plain}-{slug(plots[0].name)}" if len(plots) == 1 else plain


def shapes_of(given: str) -> Shapes:
    """Parse shapes of a model without weights: ``"kind=gpt2,heads=4"``.

    Raises:
        BadArgument: a part is no ``NAME=VALUE`` of `Shapes`.
        OptionOutOfRange: a number is out of range.
    """
    from hf_posenc.insight.plots.models import KINDS, Shapes

    values: dict[str, Any] = {}
    for part in words_of([given]):
        name, _, value = part.partition("=")
        if name not in SHAPES or not value or (name != "kind" and not (value.isascii() and value.isdigit())):
            raise BadArgument(
                f"--shape takes {', '.join(SHAPES)}, each as NAME=VALUE, got {part!r}.{nearest(name, SHAPES)}"
            )
        values[name] = choice("--shape kind", value, KINDS) if name == "kind" else int(value)
    return Shapes(**values)
