"""Options of tasks, parsed from their metadata, and the names of their metrics.

nll_L512        a metric at a length             acc_L512_D50        the same at a depth of 50 %

Values come from JSON, from Python, or as text from a command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from operator import index
from typing import Annotated, Any, ClassVar, TypeVar

from annotated_types import Interval, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from hf_posenc.core.lengths import MAX_LENGTH, tokens
from hf_posenc.errors import PosEncError, shown
from hf_posenc.eval.errors import TaskOptionOutOfRange

NAME = re.compile(r"(?P<metric>\w+?)_L(?P<length>\d+)(?:_D(?P<depth>[\d.]+))?")


def number(value: Any) -> Any:
    """Convert integers of other libraries, such as numpy's, to Python's; refuse booleans."""
    if isinstance(value, bool):
        raise ValueError("A number is needed, not a boolean")
    return index(value) if hasattr(value, "__index__") else value


def listed(value: Any) -> Sequence[Any]:
    """Parse a list from JSON, from ``"256;512"`` on a command line, or from a single number."""
    if value is None:
        return ()
    if isinstance(value, str):
        return [part for part in re.split(r"[;,\s]+", value.strip("[]")) if part]
    return value if isinstance(value, Sequence) and not isinstance(value, bytes) else (value,)


def paths(value: Any) -> list[Any]:
    """List of paths as text, from one path or several; a path may contain blanks and commas."""
    if value is None:
        return []
    items = value if isinstance(value, (list, tuple)) else [value]
    return [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]


def lengths_of(value: Any) -> list[Any]:
    """Lengths in tokens, from a list or from ``"4k,8k"``."""
    return [tokens(item, "lengths") if isinstance(item, str) else item for item in listed(value)]


def longest_of(longest: int | None, lengths: Sequence[int]) -> int:
    """Tokens available before every target; by default the longest of the lengths."""
    if longest and longest < max(lengths):
        raise TaskOptionOutOfRange(
            f"longest is {longest}, shorter than length {max(lengths)}. Raise it, or leave it out."
        )
    return longest or max(lengths)


Count = Annotated[int, Interval(ge=1, le=MAX_LENGTH), BeforeValidator(number)]
Few = Annotated[int, Interval(ge=1, le=1000), BeforeValidator(number)]
Seed = Annotated[int, Interval(ge=0, lt=2**32), BeforeValidator(number)]
Lengths = Annotated[
    tuple[Count, ...], AfterValidator(lambda lengths: tuple(sorted(set(lengths)))), BeforeValidator(lengths_of)
]
Share = Annotated[float, Interval(ge=0, le=1), BeforeValidator(number)]
Depths = Annotated[tuple[Share, ...], MinLen(1), BeforeValidator(listed)]
Paths = Annotated[tuple[Annotated[str, MinLen(1)], ...], BeforeValidator(paths)]
OptionsT = TypeVar("OptionsT", bound="TaskOptions")


class TaskOptions(BaseModel):
    """Validated options of a task with their defaults; the results name all of them."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    errors: ClassVar[Mapping[str, type[PosEncError]]] = {}
    """Error types of options for which a wrong value is not a `TaskOptionOutOfRange`."""

    @classmethod
    def of(cls: type[OptionsT], metadata: Mapping[str, Any]) -> OptionsT:
        """Parse the options in a task's metadata and ignore its other entries; None means the default."""
        values = {name: metadata[name] for name in cls.model_fields if metadata.get(name) is not None}
        try:
            return cls(**values)
        except ValidationError as error:
            name = str(next(iter(error.errors()[0]["loc"]), ""))
            raise refusal(name, values.get(name), error, cls.errors.get(name, TaskOptionOutOfRange)) from None

    @classmethod
    def plus(cls, **options: Any) -> type[TaskOptions]:
        """A class with further options; each is given as a pair of its type and its default."""
        return create_model(cls.__name__, __base__=cls, **options)


class Sampled(TaskOptions):
    """Settings of what is measured at each length.

    Attributes:
        samples: number of windows of text, at random places of all its parts.
        scored: tokens scored at the end of each window.
        keys: number of passkeys, needles or questions, each at every depth.
        depths: relative depths of the key in the filler text, 0 … 1.
        seed: seed of keys, masks, places of windows and learned schemes.
    """

    samples: Count = 16
    scored: Count = 64
    keys: Count = 8
    depths: Depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    seed: Seed = 0


class Sweep(Sampled):
    """Settings of a length sweep; lengths are in tokens.

    Attributes:
        lengths: ascending, without repeats.
        longest: tokens available before every target; with the same value, different lengths score the same targets.
        text: one or several files, folders and datasets; None means the held-out part of the standard library.
        field: column of a record that holds its text.
    """

    lengths: Lengths = Field((), validate_default=True)
    longest: Annotated[int, Interval(ge=0, le=MAX_LENGTH), BeforeValidator(number)] = Field(0, validate_default=True)
    text: Any = None
    field: str = "text"

    @field_validator("lengths")
    @classmethod
    def some(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse an empty list of lengths."""
        if not lengths:
            raise TaskOptionOutOfRange("The task has no lengths. Pass --metadata '{\"lengths\": [256, 512]}'.")
        return lengths

    @field_validator("longest")
    @classmethod
    def holds_every_length(cls, longest: int, info: ValidationInfo) -> int:
        """Fill in the default, and refuse a value that is smaller than a length."""
        return longest_of(longest or None, info.data.get("lengths", (1,)))


def checked(name: str, kind: Any, value: Any) -> Any:
    """Validate one value against an annotated type, such as `Count`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise refusal(name, value, error) from None


def refusal(
    name: str, value: Any, error: ValidationError, kind: type[PosEncError] = TaskOptionOutOfRange
) -> PosEncError:
    """Convert pydantic's error about an option; an error that one of our checks raised is returned unchanged."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, PosEncError):
        return cause
    rule = first["msg"].removeprefix("Value error, ").replace("Input", "It")
    return kind(f"{name} is {shown(value)}. {rule}.")


def metric_name(metric: str, length: int, depth: float | None = None) -> str:
    """Name of a metric in lm-eval's results: ``nll_L512``, ``acc_L512_D50``."""
    return f"{metric}_L{length}" + ("" if depth is None else f"_D{100 * depth:g}")


def parse_metric(name: str) -> tuple[str, int, float | None] | None:
    """Metric, length and depth of a name that `metric_name` made; None for other names."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    depth = None if match["depth"] is None else float(match["depth"]) / 100
    return match["metric"], int(match["length"]), depth
