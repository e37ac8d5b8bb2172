"""What can go wrong in a measurement, one type a cause; `RequestTooLong` lives in `hf_posenc.errors`."""

from __future__ import annotations

from hf_posenc.errors import PosEncError


class TaskOptionOutOfRange(PosEncError, ValueError):
    """A task's metadata lacks an option, or has a value for it that makes no sense."""


class LengthTooShort(PosEncError, ValueError):
    """A length leaves no room for the prompt or the scored tokens."""


class TextTooShort(PosEncError, ValueError):
    """The text holds fewer tokens than the windows asked of it."""


class CannotCut(PosEncError, ValueError):
    """The text has no places where this tokenizer reads both halves as it read the whole."""


class NotMeasurable(PosEncError, TypeError):
    """The model cannot answer this kind of request."""


class StaleCache(PosEncError, ValueError):
    """A cache of responses or requests whose key does not hold the scheme."""


class MissingExtra(PosEncError, ImportError):
    """An optional dependency is not installed."""
