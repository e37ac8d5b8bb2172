"""The ``position_scheme`` block: what a scheme is on disk, in ``config.json`` and beside PEFT adapters.

`hf_posenc.patching.patch` writes it. It holds names, options and lengths and nothing that could run: names are looked
up among the registered schemes, never imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from hf_posenc.core.lengths import whole_length
from hf_posenc.errors import (
    CheckpointMismatch,
    PosEncError,
    UnknownScheme,
    nearest,
    shown,
)
from hf_posenc.patching.state import STASH as STASH
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.patching.stored.config_guard import (
    ROPE_KEY,
    ROTATION_KEY,
    SCHEME_KEY,
)
from hf_posenc.schemes.spec import (
    MOST_PARTS,
    Layout,
    Plan,
    SchemeSpec,
    option_names_of,
    parts_of_spec,
    plan,
)

if TYPE_CHECKING:
    from hf_posenc.schemes.spec import Layout

FIELDS = ("format", "scheme", "layers", "trained_length", "target_length", "host_length")
LENGTHS = ("trained_length", "target_length", "host_length")
MAX_DEPTH = 20  # objects and lists in each other; a block has four
MAX_SIZE = 1 << 20  # values and characters; the largest of ours have two numbers a rotated pair
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class SchemeConfig:
    """A block, read and checked.

    Attributes:
        layout: the schemes, of all layers and of single ones.
        trained_length, target_length: in tokens.
        host_length: ``max_position_embeddings`` of the unpatched host: the rows of its position table, if it has one.
    """

    layout: Layout
    trained_length: int
    target_length: int
    host_length: int

    @classmethod
    def read(cls, value: Any, where: str) -> SchemeConfig:
        """Check a block as JSON gave it.

        Args:
            value: the block.
            where: whose it is, for messages.

        Raises:
            CheckpointMismatch: it is of another format, has unknown or missing keys, or names a scheme, an option or a
                length that does not exist.
        """
        _check_fields(value, where)
        try:
            layers = value["layers"]
            if not isinstance(layers, Mapping):
                raise TypeError(f"layers is no object but {shown(layers)}")
            layout = Layout(_plan(value["scheme"]), {key: _plan(parts) for key, parts in layers.items()})
            trained, target, host = (whole_length(name, value[name]) for name in LENGTHS)
        except UnknownScheme as error:
            raise CheckpointMismatch(
                f"The position_scheme block of {where} names a scheme that is not registered here ({_first(error)}). "
                "Install or import the package that registers it, or update hf_posenc."
            ) from error
        except (PosEncError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(where, _first(error)) from error
        if target < trained:
            raise _damaged(where, f"its target length {target} is shorter than its trained length {trained}")
        return cls(layout, trained, target, host)

    @classmethod
    def of_model(cls, model: nn.Module) -> SchemeConfig | None:
        """The block of a live model; None where it carries no scheme."""
        return cls.read(vars(base_model_of(model)[0].config)[SCHEME_KEY], "this model") if is_patched(model) else None

    @classmethod
    def of_config(cls, config: Mapping[str, Any], where: str) -> SchemeConfig | None:
        """The block of a configuration's content; None where it has none.

        Raises:
            CheckpointMismatch: as `read` does; or the host's rotation is not the one that the scheme was put on.
        """
        if config.get(SCHEME_KEY) is None:
            return None
        block = cls.read(config[SCHEME_KEY], where)
        _check_rotation(config, where)
        return block

    def to_json(self) -> dict[str, Any]:
        """As `read` takes it."""
        layers = {key: chosen.to_json() for key, chosen in self.layout.layers.items()}
        lengths = {name: getattr(self, name) for name in LENGTHS}
        return {"format": FORMAT, "scheme": self.layout.default.to_json(), "layers": layers, **lengths}

    def contradiction(
        self,
        *,
        scheme: SchemeSpec | None,
        options: Mapping[str, Any],
        layers: Mapping[int | str, SchemeSpec] | None,
        lengths: Mapping[str, Any],
    ) -> str:
        """What of a request disagrees with the block, in words; empty where nothing does. None asks for nothing."""
        if scheme is not None and not _agree(wanted := plan(scheme, options), self.layout.default):
            return f"scheme {_told(wanted)} was asked for"
        for key, spec in (layers or {}).items():
            stored = self.layout.layers.get(str(key))
            if stored is None or not _agree(plan(spec), stored):
                return f"scheme {_told(plan(spec))} was asked for in layers {key}"
        factor = lengths.get("factor")
        if factor is not None and round(self.trained_length * factor) != self.target_length:
            return f"factor {factor:g} was asked for"
        for name in LENGTHS[:2]:
            if lengths.get(name) not in (None, getattr(self, name)):
                return f"{name} {lengths[name]} was asked for"
        return ""

    def __str__(self) -> str:
        layers = "".join(f", layers {key}: {_told(chosen)}" for key, chosen in self.layout.layers.items())
        return f"{_told(self.layout.default)} (trained {self.trained_length}, target {self.target_length}{layers})"


def option_names(spec: SchemeSpec | None) -> set[str]:
    """Names of all options the schemes of ``spec`` take. Raises `UnknownScheme` as `patch_model` does."""
    return set() if spec is None else {name for cls, _ in parts_of_spec(spec) for name in option_names_of(cls)}


def too_large(value: Any) -> bool:
    """Whether a value read from JSON is larger or deeper than anything this package writes."""
    left, seen = [(value, 0)], 0
    while left:
        one, depth = left.pop()
        seen += len(one) if isinstance(one, (str, bytes)) else 1
        if depth > MAX_DEPTH or seen > MAX_SIZE:
            return True
        if isinstance(one, Mapping):
            left += [(each, depth + 1) for pair in one.items() for each in pair]
        elif isinstance(one, (list, tuple)):
            left += [(each, depth + 1) for each in one]
    return False


def _check_fields(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _damaged(where, f"it is no object but {shown(value)}")
    if too_large(value):
        raise _damaged(
            where, f"it has more than {MAX_SIZE} values and characters, or more than {MAX_DEPTH} objects in each other"
        )
    number = value.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CheckpointMismatch(
            f"The position_scheme block of {where} has format {shown(number)}; this hf_posenc reads up to {FORMAT}. "
            "Update hf_posenc."
        )
    if number is True or number != FORMAT:
        raise _damaged(where, f"its format is {shown(number)}, not {FORMAT}")
    for key in value:
        if key not in FIELDS:
            raise _damaged(where, f"it has the unknown key {shown(key)}.{nearest(key, FIELDS)}")
    for key in FIELDS:
        if key not in value:
            raise _damaged(where, f"it has no {key!r}")


def _check_rotation(config: Mapping[str, Any], where: str) -> None:
    """The scheme was chosen for one rotation of the host: where that was changed behind it, neither is right."""
    kept, now = config.get(ROTATION_KEY), config.get(ROPE_KEY)
    if kept is None:  # the host has none, or the checkpoint is of an earlier version
        return
    if not isinstance(kept, Mapping):
        raise CheckpointMismatch(
            f"The {ROTATION_KEY} of {where} is no object but {shown(kept)}. Save the patched model again."
        )
    for name, value in kept.items():
        found = now.get(name) if isinstance(now, Mapping) else now
        if found != value:
            raise CheckpointMismatch(
                f"The position_scheme block of {where} was written for {ROPE_KEY} with {name} {shown(value)}, and "
                f"the configuration now says {shown(found)}. Put that back, or patch the plain model anew."
            )


def _damaged(where: str, what: str) -> CheckpointMismatch:
    end = "" if what.endswith("?") else "."
    return CheckpointMismatch(
        f"The position_scheme block of {where} cannot be read: {what}{end} Save the patched model again."
    )


def _first(error: Exception) -> str:
    return str(error).partition(". ")[0].rstrip(".")


def _plan(parts: Any) -> Plan:
    if not isinstance(parts, list) or not 1 <= len(parts) <= MOST_PARTS:
        raise ValueError(f"scheme must be a list of 1 to {MOST_PARTS} parts, got {shown(parts)}")
    for part in parts:
        if (
            not isinstance(part, Mapping)
            or set(part) != {"name", "options"}
            or not isinstance(part["options"], Mapping)
        ):
            raise ValueError(f"a part of a scheme has a name and options, got {shown(part)}")
    return plan([(part["name"], part["options"]) for part in parts])


def _agree(wanted: Plan, stored: Plan) -> bool:
    """Same schemes, and every option asked for has the stored value (or the default, where none is stored)."""
    if [cls for cls, _ in wanted.parts] != [cls for cls, _ in stored.parts]:
        return False
    return all(
        value == theirs.get(name, inspect.signature(cls.__init__).parameters[name].default)
        for (cls, mine), (_, theirs) in zip(wanted.parts, stored.parts, strict=True)
        for name, value in mine.items()
    )


def _told(chosen: Plan) -> str:
    parts = []
    for cls, options in chosen.parts:
        written = ", ".join(f"{name}={value!r}" for name, value in options.items())
        parts.append(f"{cls.record.name}({written})" if written else cls.record.name)
    return repr("+".join(parts))


FORMAT = 1
