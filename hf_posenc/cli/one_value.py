"""Refuse an option that is given twice and takes one value; click would keep the last without a word."""

from __future__ import annotations

from collections import Counter
from typing import Any

from typer.core import TyperCommand, TyperOption

from hf_posenc.cli.bad_argument import BadArgument

SEVERAL = {"model": " hf-posenc compare takes several models."}
"""Where an option that is repeated may be repeated."""


class OneValueCommand(TyperCommand):
    """A command whose options may be repeated only where they take several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line.

        Raises:
            BadArgument: an option that takes one value is given several times.
        """
        if not ctx.resilient_parsing and args:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter, times in Counter(order).items():
                one = isinstance(parameter, TyperOption) and not (
                    parameter.multiple or parameter.is_flag or getattr(parameter, "count", False)
                )
                if one and times > 1:
                    raise BadArgument(
                        f"{parameter.opts[0]} is given {times} times and takes one value. "
                        f"Pass it once.{SEVERAL.get(str(parameter.name), '')}"
                    )
        return super().parse_args(ctx, args)
