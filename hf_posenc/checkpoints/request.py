"""The scheme a caller of `from_pretrained` asks for, and whether it agrees with the one the checkpoint carries."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from hf_posenc.checkpoints.checkpoint import Checkpoint
from hf_posenc.errors import CheckpointMismatch, NotPatched
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.stored.scheme_config import SchemeConfig, describe_plan
from hf_posenc.schemes.spec import Plan, SchemeSpec, option_names_of, parts_of_spec, plan


@dataclass(frozen=True)
class SchemeRequest:
    """Scheme, options, lengths and layers as `patch_model` takes them; what is None is not asked for."""

    scheme: SchemeSpec | None
    options: Mapping[str, Any]
    layers: Mapping[int | str, SchemeSpec] | Literal["all"] | None
    lengths: Mapping[str, Any]

    def check_agreement(self, checkpoint: Checkpoint) -> None:
        """Refuse a request that contradicts the scheme a checkpoint carries, or that belongs to no scheme.

        Raises:
            CheckpointMismatch: scheme, options, lengths or layers differ from those of the model or of its adapter.
            NotPatched: lengths or layers are given, and neither the request nor the checkpoint has a scheme.
        """
        for where, stored in checkpoint.schemes.items():
            if difference := self.difference(stored):
                raise CheckpointMismatch(
                    f"{where} carries scheme {stored}, but {difference}. Leave that out; unpatch_model removes the "
                    "scheme, and hf-posenc compare measures others on the same weights."
                )
        given = [name for name, value in {**self.lengths, "layers": self.layers or None}.items() if value is not None]
        if checkpoint.scheme is None and self.scheme is None and given:
            raise NotPatched(
                f"{given[0]} needs a scheme, and neither the call nor the checkpoint has one. Pass scheme (--scheme)."
            )

    def difference(self, stored: SchemeConfig) -> str:
        """The first contradiction with a stored scheme, as a clause; empty where there is none."""
        if self.scheme is not None and not agree(wanted := plan(self.scheme, self.options), stored.layout.default):
            return f"scheme {describe_plan(wanted)} was asked for"
        if self.layers == "all" and stored.layout.layers:
            return "it was asked for in all layers"
        for key, spec in self.layers.items() if isinstance(self.layers, Mapping) else ():
            layer = stored.layout.layers.get(str(key))
            if layer is None or not agree(plan(spec), layer):
                return f"scheme {describe_plan(plan(spec))} was asked for in layers {key}"
        factor = self.lengths.get("factor")
        if factor is not None and round(stored.trained_length * factor) != stored.target_length:
            return f"factor {factor:g} was asked for"
        for name in ("trained_length", "target_length"):
            if self.lengths.get(name) not in (None, getattr(stored, name)):
                return f"{name} {self.lengths[name]} was asked for"
        return ""

    def patch(self, model: nn.Module) -> None:
        """Patch a plain model as asked. Raises as `patch_model` does."""
        if self.scheme is not None:
            patch_model(model, self.scheme, layers=self.layers, **self.lengths, **self.options)


def option_names(spec: SchemeSpec | None) -> set[str]:
    """Names of all options the schemes of ``spec`` take. Raises `UnknownScheme` as `patch_model` does."""
    return set() if spec is None else {name for cls, _ in parts_of_spec(spec) for name in option_names_of(cls)}


def agree(wanted: Plan, stored: Plan) -> bool:
    """Same schemes, and every option asked for has the stored value (or the default, where none is stored)."""
    if [cls for cls, _ in wanted.parts] != [cls for cls, _ in stored.parts]:
        return False
    return all(
        value == theirs.get(name, inspect.signature(cls.__init__).parameters[name].default)
        for (cls, mine), (_, theirs) in zip(wanted.parts, stored.parts, strict=True)
        for name, value in mine.items()
    )
