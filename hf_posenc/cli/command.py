"""The class of all commands: options under headings in ``--help``, in plain words, and none given twice by mistake.

The heading of an option is what Typer calls its ``rich_help_panel``. Typer prints it with rich only, whose import would
double the response time.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from typer.core import TyperCommand, TyperOption

from hf_posenc.cli.bad_argument import BadArgument

LAST = ("Output", "Options")
"""Headings that come last; the second is that of options without a heading."""
VALUES = {"int": "N", "integer": "N", "float": "NUMBER", "path": "PATH"}
"""Type of a value as Typer writes it → what stands for it in the help; ``TEXT`` for any other."""
TYPE = re.compile(r"(?<= )<?(?:list\[)?(str|text|int|integer|float|path)(?: range)?\]?>?$", re.IGNORECASE)
RANGE = re.compile(r"(\S+)<=x<=(\S+?)(?=[\];])")
AT_LEAST = re.compile(r"x>=(?=\d)")


class Command(TyperCommand):
    """A command of ``hf-posenc``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                argument = parameter.param_type_name == "argument"
                heading = getattr(parameter, "rich_help_panel", None) or ("Arguments" if argument else LAST[-1])
                sections.setdefault(heading, []).append(in_plain_words(*record))
        for heading in sorted(sections, key=lambda heading: LAST.index(heading) if heading in LAST else -1):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line.

        Raises:
            BadArgument: an option that takes one value is given several times, of which click would keep the last.
        """
        if args and not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter, times in Counter(order).items():
                several = not isinstance(parameter, TyperOption) or parameter.multiple or parameter.is_flag
                if times > 1 and not several:
                    raise BadArgument(f"{parameter.opts[0]} is given {times} times and takes one value. Pass it once.")
        return super().parse_args(ctx, args)


def in_plain_words(names: str, text: str) -> tuple[str, str]:
    """A line of the help without the types of a programming language."""
    names = TYPE.sub(lambda found: VALUES.get(found[1].lower(), "TEXT"), names)
    return names, AT_LEAST.sub("at least ", RANGE.sub(r"\1 to \2", text))
