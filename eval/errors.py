"""Errors of evaluations, one type per cause; `RequestTooLong` lives in `hf_posenc.errors`."""

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


class TokenizerTooPoor(PosEncError, ValueError):
    """The tokenizer does not tell the words of a task apart: it reads them as unknown, or as nothing."""


class UnreadableDocuments(PosEncError, ValueError):
    """The user's documents cannot be found or read."""


class UntrustedTask(PosEncError, PermissionError):
    """A task file from outside the package, which can run code, was not said to be trusted."""


class NotANumber(PosEncError, ArithmeticError):
    """An answer of the model is no finite number, so that no metric can be made of it."""


class StoreUnusable(PosEncError, OSError):
    """The file of finished cells cannot be opened, read or written."""


class StoreChanged(PosEncError, RuntimeError):
    """Something other than this package wrote to the file of finished cells."""


class BeyondTable(PosEncError, ValueError):
    """A model without a scheme is asked for positions that its learned table does not have."""
