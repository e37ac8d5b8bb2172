"""The error of a command line that asks for something impossible."""

from __future__ import annotations

from hf_posenc.errors import PosEncError


class BadArgument(PosEncError, ValueError):
    """An argument on the command line is invalid."""
