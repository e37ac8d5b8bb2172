"""The scheme config: a scheme as stored on disk, in ``position_scheme`` of ``config.json`` and in PEFT sidecars.

It holds only names, options and lengths, and no code: names are looked up among the registered schemes, never imported.
So an edit of your own scheme's formula or defaults changes the outputs of all models saved with it. A checkpoint
therefore stores a digest of that code (`own_code`), and loading warns if the code has changed. Earlier versions stored
a digest of bytecode, which is ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from hf_posenc.core.lengths import whole_length
from hf_posenc.core.source_digest import digest_of, source_digest
from hf_posenc.errors import CheckpointMismatch, PosEncError, SchemeCodeChanged, UnknownScheme, nearest, shown
from hf_posenc.patching.config_guard import ROPE_KEY, ROTATION_KEY, SCHEME_KEY
from hf_posenc.patching.state import is_patched, scheme_holder
from hf_posenc.schemes.spec import MOST_PARTS, Layout, Plan, plan

FORMAT = 1
LENGTHS = ("trained_length", "target_length", "host_length")
FIELDS = ("format", "scheme", "layers", *LENGTHS)
PART = {"name", "options"}  # keys of a part of a scheme


@dataclass(frozen=True)
class SchemeConfig:
    """A validated scheme config.

    Attributes:
        layout: default scheme, and schemes of single layers.
        trained_length, target_length: lengths in tokens.
        host_length: ``max_position_embeddings`` of the unpatched model: the rows of its position table, if it has one.
    """

    layout: Layout
    trained_length: int
    target_length: int
    host_length: int

    @classmethod
    def read(cls, value: Any, where: str) -> SchemeConfig:
        """Validate a scheme config as parsed from JSON.

        Raises:
            CheckpointMismatch: the format is newer, keys are unknown or missing, or a value is invalid.
        """
        check_format(value, where)
        try:
            layers = value["layers"]
            if not isinstance(layers, Mapping):
                raise TypeError(f"layers is not an object but {shown(layers)}")
            layout = Layout(_plan(value["scheme"]), {key: _plan(parts) for key, parts in layers.items()})
            trained, target, host_length = (whole_length(name, value[name]) for name in LENGTHS)
        except UnknownScheme as error:
            raise CheckpointMismatch(
                f"The position_scheme of {where} names a scheme that is not registered here ({_first(error)}). "
                "Import the file or package that registers it (--import), or update hf_posenc."
            ) from error
        except (PosEncError, TypeError, ValueError, AttributeError) as error:
            raise unreadable(where, _first(error)) from error
        if target < trained:
            raise unreadable(where, f"its target length {target} is shorter than its trained length {trained}")
        return cls(layout, trained, target, host_length)

    @classmethod
    def of_model(cls, model: nn.Module) -> SchemeConfig | None:
        """The scheme config of a loaded model. None if it is not patched, or its stacks have different schemes."""
        if not is_patched(model):
            return None
        entry = vars(scheme_holder(model).config).get(SCHEME_KEY)
        return None if entry is None else cls.read(entry, "this model")

    @classmethod
    def of_config(cls, config: Mapping[str, Any], where: str) -> SchemeConfig | None:
        """The scheme config inside a model configuration, or None.

        Raises:
            CheckpointMismatch: see `read`; or ``rope_parameters`` were changed since the model was patched.
        """
        if config.get(SCHEME_KEY) is None:
            return None
        scheme_config = cls.read(config[SCHEME_KEY], where)
        _check_rotation(config, where)
        return scheme_config

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `read` accepts."""
        layers = {key: plan.to_json() for key, plan in self.layout.layers.items()}
        lengths = {name: getattr(self, name) for name in LENGTHS}
        return {"format": FORMAT, "scheme": self.layout.default.to_json(), "layers": layers, **lengths}

    def arguments(self) -> dict[str, Any]:
        """The arguments with which `hf_posenc.patch_model` repeats this patch."""
        lengths = {"trained_length": self.trained_length, "target_length": self.target_length}
        return {"scheme": self.layout.default, "layers": self.layout.layers, **lengths}

    def __str__(self) -> str:
        layers = "".join(f", layers {key}: {plan.described!r}" for key, plan in self.layout.layers.items())
        lengths = f"trained {self.trained_length}, target {self.target_length}"
        return f"{self.layout.default.described!r} ({lengths}{layers})"


def _check_rotation(config: Mapping[str, Any], where: str) -> None:
    """Refuse a checkpoint whose ``rope_parameters`` differ from those at the time of the patch."""
    before, now = config.get(ROTATION_KEY), config.get(ROPE_KEY)
    if before is None:  # the model has none, or the checkpoint is of an earlier version
        return
    if not isinstance(before, Mapping):
        raise CheckpointMismatch(
            f"The {ROTATION_KEY} of {where} is not an object but {shown(before)}. Save the patched model again."
        )
    for name, value in before.items():
        present = now.get(name) if isinstance(now, Mapping) else now
        if present != value:
            raise CheckpointMismatch(
                f"The position_scheme of {where} was written for {ROPE_KEY} with {name} {shown(value)}, and "
                f"the configuration now says {shown(present)}. Put that back, or patch the plain model anew."
            )


def _plan(parts: Any) -> Plan:
    if not isinstance(parts, list) or not 1 <= len(parts) <= MOST_PARTS:
        raise ValueError(f"scheme must be a list of 1 to {MOST_PARTS} parts, got {shown(parts)}")
    for part in parts:
        if not (isinstance(part, Mapping) and part.keys() == PART and isinstance(part["options"], Mapping)):
            raise ValueError(f"a part of a scheme has a name and options, got {shown(part)}")
    return plan([(part["name"], part["options"]) for part in parts])


def _first(error: Exception) -> str:
    return str(error).partition(". ")[0].rstrip(".")


def check_format(value: Any, where: str) -> None:
    """Refuse JSON that is not a scheme config of the format that this version reads."""
    if not isinstance(value, Mapping):
        raise unreadable(where, f"it is not an object but {shown(value)}")
    number = value.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CheckpointMismatch(
            f"The position_scheme of {where} has format {shown(number)}; this hf_posenc reads up to {FORMAT}. "
            "Update hf_posenc."
        )
    if number is True or number != FORMAT:
        raise unreadable(where, f"its format is {shown(number)}, not {FORMAT}")
    for key in value:
        if key not in FIELDS:
            raise unreadable(where, f"it has the unknown key {shown(key)}.{nearest(key, FIELDS)}")
    for key in FIELDS:
        if key not in value:
            raise unreadable(where, f"it has no {key!r}")


def unreadable(where: str, reason: str) -> CheckpointMismatch:
    """The error for a scheme config that cannot be read."""
    end = "" if reason.endswith("?") else "."
    return CheckpointMismatch(
        f"The position_scheme of {where} cannot be read: {reason}{end} Save the patched model again."
    )


def digest_of_own(classes: Iterable[type]) -> str:
    """Digest of the source of those classes that are defined outside this package; empty if there are none."""
    own = sorted({digest for cls in classes if (digest := source_digest(cls)) is not None})
    return digest_of(" ".join(own)) if own else ""


def own_code(layout: Layout) -> dict[str, str] | None:
    """The entry that a checkpoint stores for schemes defined outside this package; None if there are none."""
    digest = digest_of_own(classes_of(layout))
    return {"source": digest} if digest else None


def classes_of(layout: Layout) -> list[type]:
    """Scheme classes of all layers."""
    return [cls for plan in (layout.default, *layout.layers.values()) for cls, _ in plan.parts]


def warn_of_changed_code(stored: Any, layout: Layout) -> None:
    """Warn if the code of a checkpoint's schemes has changed since it was saved."""
    now = own_code(layout)
    if not isinstance(stored, dict) or now is None or "source" not in stored or stored == now:
        return
    names = ", ".join(sorted({cls.record.name for cls in classes_of(layout) if digest_of_own([cls])}))  # type: ignore[attr-defined]
    warnings.warn(
        f"The code of {names}, or a default of an option, differs from when this checkpoint was saved: the model "
        "may compute something else. Put that code back, or save the model again.",
        SchemeCodeChanged,
        stacklevel=2,
    )
