"""Errors of evaluations, one type per cause; `RequestTooLong` lives in `hf_posenc.errors`."""

from __future__ import annotations

from hf_posenc.errors import PosEncError
from hf_posenc.errors import UnreadableDocuments as UnreadableDocuments


class TaskOptionOutOfRange(PosEncError, ValueError):
    """A task's metadata lacks an option, or has an invalid value for it."""


class LengthTooShort(PosEncError, ValueError):
    """A length leaves no room for the prompt or the scored tokens."""


class TextTooShort(PosEncError, ValueError):
    """The text has fewer tokens than the requested windows need."""


class CannotCut(PosEncError, ValueError):
    """The text has no positions where it can be cut without a change of its tokens."""


class NotMeasurable(PosEncError, TypeError):
    """The model cannot answer this kind of request."""


class TokenizerTooPoor(PosEncError, ValueError):
    """The tokenizer cannot represent the words of a task: they are unknown or empty."""


class UntrustedTask(PosEncError, PermissionError):
    """A task file from outside the package, which can run code, was not declared trusted."""


class NotANumber(PosEncError, ArithmeticError):
    """A score of the model is not finite, so that no metric can be computed from it."""


class StoreUnusable(PosEncError, OSError):
    """The file of finished cells cannot be opened, read or written."""


class StoreUnreadable(StoreUnusable):
    """The file of finished cells is damaged, or another program or version wrote it."""


class BeyondTable(PosEncError, ValueError):
    """Positions past the end of the learned table are requested from a model without a scheme."""
