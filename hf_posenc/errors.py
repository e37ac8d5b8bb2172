"""All errors and warnings of this package, one type per cause; longer than other files so that they are in one place.

Each message is one sentence of what happened, with the value, and one of what to do. Types that a caller would expect
to be a `ValueError` or `TypeError` are subclasses of it.
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


class CannotImport(PosEncError, ImportError):
    """The Python file of a scheme or an adapter cannot be imported."""


class UnknownCheck(PosEncError, ValueError):
    """No check has this name."""


class UnknownOption(PosEncError, TypeError):
    """The scheme takes no option of that name."""


class OptionOutOfRange(PosEncError, ValueError):
    """An option has a value, or a type, that the scheme does not accept."""


class LengthContradiction(PosEncError, ValueError):
    """Trained length, target length and factor do not agree, or are out of range."""


class CannotCombine(PosEncError, ValueError):
    """Two schemes of a composition exclude each other."""


class AlreadyPatched(PosEncError, ValueError):
    """The model carries a scheme already."""


class NotPatched(PosEncError, ValueError):
    """The model carries no scheme."""


class ModelInUse(PosEncError, RuntimeError):
    """A call inside the model's own forward pass patches or unpatches it."""


class AlreadyScaled(PosEncError, ValueError):
    """The model's own configuration scales RoPE already."""


class UnsupportedModel(PosEncError, TypeError):
    """No adapter knows where this model keeps position."""


class HostChanged(PosEncError, RuntimeError):
    """The installed transformers, PEFT or lm-eval lacks a name that this package uses."""


class AdapterInvalid(PosEncError, TypeError):
    """An adapter breaks its contract: a member is missing, or returns a wrong value."""


class ForeignPatch(PosEncError, RuntimeError):
    """Another library replaced a module, or its ``forward`` on the instance, which would hide the patch."""


class NoEffect(PosEncError, RuntimeError):
    """The patch changed no output, or changed outputs that it must not affect."""


class BackendCannotCarry(PosEncError, RuntimeError):
    """The attention backend in use cannot compute this scheme."""


class PositionOutOfTable(PosEncError, IndexError):
    """A position lies past the end of a learned table."""


class FractionalPosition(CannotCombine):
    """A position is not a whole number, and the scheme needs whole numbers."""


class NeedsWholeText(PosEncError, RuntimeError):
    """The scheme's positions depend on the length of the text, so a cached text cannot go on."""


class NotTraceable(PosEncError, RuntimeError):
    """The scheme's computation cannot be traced or compiled."""


class OutsideModel(PosEncError, RuntimeError):
    """A scheme that needs a layer's projections or hidden states is called without a layer."""


class MaskMismatch(PosEncError, ValueError):
    """An attention mask has another width than the keys it should mask."""


class NotExpressible(PosEncError, ValueError):
    """No RoPE type of transformers computes this scheme, so a plain checkpoint would have other outputs."""


class MergeFailed(PosEncError, ValueError):
    """A PEFT adapter has other outputs once it is merged into the weights."""


class UntestedVersion(UserWarning):
    """An installed package is newer than its tested versions."""


class OnlyWithinTrainedLength(UserWarning):
    """A plain checkpoint has the same outputs up to the trained length, and others beyond."""


class NotReadBefore5(UserWarning):
    """transformers before 5 loads a plain checkpoint without an error, but without its scaling."""


class NothingStretched(UserWarning):
    """A scheme that stretches the context has neither a factor nor a length, so it changes nothing."""


class ReadOtherwise(UserWarning):
    """Another program reads a plain checkpoint without an error, but differently."""


class EngineDiffers(ReadOtherwise):
    """A serving engine has other outputs for this checkpoint than transformers."""


class TokenizerLeftOut(UserWarning):
    """A GGUF file has no tokenizer, because llama.cpp has none that splits texts in the same way."""


class LimitKept(UserWarning):
    """A limit below the trained length was kept, and still cuts texts."""


class SchemeCodeChanged(UserWarning):
    """The code of your own scheme has changed since the checkpoint was saved."""


class CheckpointMismatch(PosEncError, ValueError):
    """A checkpoint or its scheme config cannot be read, or contradicts an argument."""


class PeftAdapterMismatch(PosEncError, ValueError):
    """A PEFT adapter was trained under another scheme than the base carries."""


class MissingPackage(PosEncError, ImportError):
    """A function needs a package that is not installed, such as one of an extra of this package."""


class TrainingImpossible(PosEncError, ValueError):
    """A setting is out of range, or does not fit the model, so training cannot start."""


class NoDiskSpace(PosEncError, OSError):
    """A disk has less free space than a run will write."""


class NoMemory(PosEncError, MemoryError):
    """A model, an adapter or a text takes more memory than the machine has."""


class FolderInUse(PosEncError, RuntimeError):
    """Another run writes to this folder."""


class RequestTooLong(PosEncError, ValueError):
    """An evaluation request is longer than the model's window."""


class WrongKind(PosEncError, TypeError):
    """An argument has a type that the function does not take."""


class UnknownStarter(PosEncError, ValueError):
    """No starter has that name."""


class NameNotAllowed(PosEncError, ValueError):
    """The name of a new scheme or adapter is taken, or has characters that are not allowed."""


class ModelNotFound(PosEncError, OSError):
    """A name or path leads to no model, or to none that can be downloaded now."""


class FolderUnusable(PosEncError, OSError):
    """A path is not a folder, or the folder is read-only."""


class HostConfigInvalid(PosEncError, ValueError):
    """A model's own configuration has lengths or RoPE parameters out of range."""


class InvalidInput(PosEncError, ValueError):
    """Token ids, positions or masks of a call are invalid."""


class UnknownKeyword(PosEncError, TypeError):
    """A call has an unsupported keyword that may change attention."""


class UnknownKeys(UserWarning):
    """The scheme that wrote the keys of a KV cache is unknown."""


class KernelNotUsed(UserWarning):
    """A kernel of PyTorch does not work on this device, so a slower one computes the same."""


class NoValues(PosEncError, RuntimeError):
    """A scheme's parameter is on the meta device, so it has no values."""


class WeightsNotFinite(PosEncError, ValueError):
    """A weight of the model is NaN or infinite."""


class UnreadableDocuments(PosEncError, ValueError):
    """The user's texts cannot be found or read."""


class HeldOutOverlap(UserWarning):
    """A held-out document is in the training text as well."""


class BadComparison(PosEncError, ValueError):
    """The schemes of a comparison cannot be read, or there are none."""


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message, or its reason where the system gave one, for a message of ours."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().partition("\n")[0].rstrip(" .:!")[:200] or type(error).__name__


def shown(value: Any) -> str:
    """``repr(value)`` on one line, cut off where it is long: values come from other people's files."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except Exception:  # somebody else's __repr__, or whole numbers of more digits than Python writes
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the closest known names: ``" Did you mean 'yarn'?"``; empty where nothing is close."""
    if not isinstance(name, str) or len(name) > SHOWN:  # no typing error
        return ""
    close = get_close_matches(name.lower(), list(known), n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
