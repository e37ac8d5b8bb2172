"""Everything that can go wrong, one type a cause.

Each message is one sentence of what happened, with the value, and one of what to do. Types that a caller would expect
to be a `ValueError` or `TypeError` are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

SHOWN = 100  # characters of a foreign value that a message repeats


class PosEncError(Exception):
    """Base of all errors this package raises on purpose."""


class UnknownScheme(PosEncError, ValueError):
    """No scheme of that name is registered."""


class SchemeNotDefined(PosEncError, ValueError):
    """The scheme has no meaning on this kind of model."""


class UnknownLesson(PosEncError, ValueError):
    """No demonstration is registered under that name, or it does not take what it was given."""


class UnknownOption(PosEncError, TypeError):
    """The scheme takes no option of that name."""


class OptionOutOfRange(PosEncError, ValueError):
    """An option has a value, or a type, that the scheme does not accept."""


class LengthContradiction(PosEncError, ValueError):
    """Trained length, target length and factor do not agree, or are out of range."""


class CannotCombine(PosEncError, ValueError):
    """Two schemes of a composition would occupy the same place."""


class AlreadyPatched(PosEncError, ValueError):
    """The model carries a scheme already."""


class NotPatched(PosEncError, ValueError):
    """The model carries no scheme."""


class ModelInUse(PosEncError, RuntimeError):
    """A forward pass computes with the model that is to be patched or unpatched, and does not end before."""


class AlreadyScaled(PosEncError, ValueError):
    """The host's own configuration scales RoPE already."""


class UnsupportedModel(PosEncError, TypeError):
    """No adapter knows where this model keeps position."""


class AdapterInvalid(PosEncError, TypeError):
    """An adapter breaks its contract: it lacks a member, or one of them returns what it must not."""


class ForeignPatch(PosEncError, RuntimeError):
    """Somebody else replaced a module's ``forward`` on the instance; a class swap would be hidden behind it."""


class NoEffect(PosEncError, RuntimeError):
    """The patch was installed and moved nothing, or moved what it must leave alone."""


class BackendCannotCarry(PosEncError, RuntimeError):
    """The attention backend in use cannot compute this scheme."""


class PositionOutOfTable(PosEncError, IndexError):
    """A position lies past the end of a learned table."""


class FractionalPosition(PosEncError, ValueError):
    """A position lies between two whole numbers, and the scheme knows whole ones only."""


class NeedsWholeText(PosEncError, RuntimeError):
    """Positions depend on how long the text is, and a cached text is to be continued."""


class NotTraceable(PosEncError, RuntimeError):
    """A graph of the model is asked for, and what the scheme computes, or how it is asked, fits in none."""


class OutsideModel(PosEncError, RuntimeError):
    """A scheme that reads a layer's own projections or states is asked for scores without a layer."""


class MaskMismatch(PosEncError, ValueError):
    """An attention mask has another width than the keys it should mask."""


class NotExpressible(PosEncError, ValueError):
    """transformers has no RoPE type that computes this scheme, so a plain checkpoint would compute something else."""


class OnlyWithinTrainedLength(UserWarning):
    """transformers computes the same up to the trained length of a plain checkpoint, and something else beyond."""


class CheckpointMismatch(PosEncError, ValueError):
    """A checkpoint's scheme block cannot be read, or disagrees with what was asked for."""


class PeftAdapterMismatch(PosEncError, ValueError):
    """A PEFT adapter was trained under another scheme than the base carries."""


class MissingPackage(PosEncError, ImportError):
    """A function needs a package that is installed with an extra of this one."""


class TrainingImpossible(PosEncError, ValueError):
    """A model cannot be trained as asked: a setting is out of range, or settings and model do not go together."""


class NoRoom(PosEncError, OSError):
    """A disk has less room than a run will write."""


class NoMemory(PosEncError, MemoryError):
    """A text is so long that reading it takes more memory than the machine has."""


class FolderInUse(PosEncError, RuntimeError):
    """Another run writes to this folder."""


class RequestTooLong(PosEncError, ValueError):
    """An evaluation request is longer than the model's window."""


class WrongKind(PosEncError, TypeError):
    """An argument is of another kind than the function takes."""


class UnknownStarter(PosEncError, ValueError):
    """No starter has that name."""


class NameNotAllowed(PosEncError, ValueError):
    """A scheme or an adapter is registered under a name that cannot be written, or that is taken."""


class ModelNotFound(PosEncError, OSError):
    """A name or path holds no model, or none that can be had now."""


class FolderUnusable(PosEncError, OSError):
    """A folder cannot be written to, or is none."""


class HostConfigInvalid(PosEncError, ValueError):
    """A host's own configuration says something of positions that cannot be."""


class InvalidInput(PosEncError, ValueError):
    """Tokens or positions of a call that no text could have."""


class UnknownKeyword(PosEncError, TypeError):
    """A call has a keyword that may change what attention computes, and that a scheme does not know."""


class UnknownKeys(UserWarning):
    """A cache holds keys, and whether they were made under the scheme of the model that goes on is not known."""


class NoValues(PosEncError, RuntimeError):
    """A parameter of a scheme is on the meta device, which has no values, and they are nowhere else."""


class WeightsNotFinite(PosEncError, ValueError):
    """A weight of the model is no finite number, so that nothing it computes means anything."""


def shown(value: Any) -> str:
    """``repr(value)``, cut off where it is long: values come from other people's files."""
    try:
        told = repr(value)
    except Exception:  # somebody else's __repr__, or whole numbers of more digits than Python writes
        told = f"a value of type {type(value).__name__}"
    return told if len(told) <= SHOWN else told[: SHOWN - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the closest known names: ``" Did you mean 'yarn'?"``; empty where nothing is close."""
    if not isinstance(name, str) or len(name) > SHOWN:  # nobody's typing error
        return ""
    close = get_close_matches(name.lower(), list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


class MissingExtra(PosEncError, ImportError):
    """An optional dependency is not installed."""


class BadComparison(PosEncError, ValueError):
    """A comparison is asked for in words that cannot be read, or of nothing."""
