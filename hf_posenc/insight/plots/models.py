"""Where a scheme to look at comes from: shapes of a host that does not exist, or a model of one's own.

Pictures need no weights. Built for mere shapes, a learned scheme is as it starts, always with the same seed; patched
into a model, it has that model's table and projections, and a checkpoint's own scheme has what it learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

import torch
from torch import nn

from hf_posenc.core.geometry import (
    Geometry,
    HostRotary,
    Rotation,
    geometric,
)
from hf_posenc.core.lengths import resolve_lengths
from hf_posenc.core.record import SchemeRecord
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.target import Target
from hf_posenc.patches.attention import LayerProjections
from hf_posenc.patches.forward_hook import ATTENTIONS
from hf_posenc.patches.position_table import SchemePositionTable
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import base_model_of, is_patched
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import build
from hf_posenc.schemes.spec import SchemeSpec, of_layer, parts_of_spec, plan

Kind = Literal["llama", "gpt2", "bert"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BASE = 10_000.0
TABLE_STD = 0.02  # of GPT-2's and BERT's tables before training
SEED = 0


class AsItComes(Scheme):
    """The host's own positions, nothing changed."""

    record = SchemeRecord("unpatched", title="The host's own positions.")
    replaces_host = False


class Source(Protocol):
    """What schemes can be built on, for as long as a picture is taken."""

    def subject(
        self,
        scheme: SchemeSpec | None,
        options: Mapping[str, Any] | None = None,
        *,
        label: str | None = None,
        layer: int = 0,
        **lengths: Any,
    ) -> AbstractContextManager[Target]:
        """A scheme as `hf_posenc.patch_model` takes it, or None for the host's own positions.

        Args:
            scheme: what to build.
            options: of the scheme.
            label: what pictures call it.
            layer: which layer's scheme.
            **lengths: ``factor``, ``target_length``, ``trained_length``; the same as for `hf_posenc.patch_model`.
        """


@dataclass(frozen=True)
class Shapes:
    """A host that does not exist: a decoder that rotates, a decoder with a table, or an encoder with a table.

    Attributes:
        kind: whose kind it is of; None for the first that the scheme is defined for.
        width: channels of a token, and so of what is added to it; need not be heads · head_dim here.
    """

    kind: Kind | None = None
    heads: int = 8
    head_dim: int = 64
    width: int = 128
    layers: int = 4
    trained_length: int = 256

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "width", "layers", "trained_length"):
            if getattr(self, name) < 1:
                raise OptionOutOfRange(f"{name} must be at least 1, got {getattr(self, name)}. Leave it out.")
        if self.head_dim % 2:
            raise OptionOutOfRange(f"head_dim must be even, as pairs are rotated, got {self.head_dim}. Add one.")

    def geometry(self, kind: Kind, target_length: int) -> Geometry:
        """The shapes as a scheme reads them."""
        turning = HostRotary(Rotation(geometric(BASE, self.head_dim)), BASE) if kind == "llama" else None
        return Geometry(
            heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim, width=self.width, layers=self.layers,
            causal=kind != "bert", trained_length=self.trained_length, target_length=target_length,
            rotary=turning, table=self.trained_length if turning is None else None,
        )  # fmt: skip

    @contextmanager
    def subject(
        self,
        scheme: SchemeSpec | None,
        options: Mapping[str, Any] | None = None,
        *,
        label: str | None = None,
        layer: int = 0,
        **lengths: Any,
    ) -> Iterator[Target]:
        """A scheme as it starts; see `Source.subject`.

        Raises:
            PosEncError: the scheme, an option or a length is refused.
        """
        chosen = plan(AsItComes if scheme is None else scheme, options)
        found = resolve_lengths(configured=self.trained_length, **lengths)
        kind = self.kind or first_kind(scheme)
        geometry = replace(self, trained_length=found.trained).geometry(kind, found.target)
        check_layer(layer, geometry.layers)
        with torch.no_grad(), seeded():
            built = build(of_layer(chosen, layer, geometry.layers), geometry, kind).eval()
            built.reset_parameters()
            table = None if geometry.table is None else TABLE_STD * torch.randn(geometry.table, geometry.width)
            yield Target(label or chosen.name, built, table, layer=layer)


@dataclass(frozen=True)
class Model:
    """A model of one's own, patched while a picture is taken and afterwards as it was."""

    model: nn.Module = field(repr=False)

    @contextmanager
    def subject(
        self,
        scheme: SchemeSpec | None,
        options: Mapping[str, Any] | None = None,
        *,
        label: str | None = None,
        layer: int = 0,
        **lengths: Any,
    ) -> Iterator[Target]:
        """A scheme in a layer of the model; None is what the model carries, or its own positions.

        Raises:
            PosEncError: the scheme, an option or a length is refused.
        """
        own = scheme is None and is_patched(self.model)
        if not own:
            with seeded():
                patch_model(self.model, AsItComes if scheme is None else scheme, **lengths, **(options or {}))
        try:
            base, _ = base_model_of(self.model)
            attentions: list[Any] = base.__dict__[ATTENTIONS]
            check_layer(layer, len(attentions))
            attention = attentions[layer]
            table = next((m.weight for m in base.modules() if isinstance(m, SchemePositionTable)), None)
            name = label or attention.scheme.extra_repr()
            with torch.no_grad(), seeded():
                yield Target(name, attention.scheme, table, LayerProjections(attention), layer)
        finally:
            if not own:
                unpatch_model(self.model)


def first_kind(scheme: SchemeSpec | None) -> Kind:
    """The first kind of host that all parts of a scheme are defined for; a rotating decoder where there is none."""
    models = [set(cls.record.models) for cls, _ in parts_of_spec(scheme or AsItComes)]
    return next((kind for kind in KINDS if all(kind in known for known in models)), "llama")


def check_layer(layer: int, layers: int) -> None:
    """Refuse layers that are not there.

    Raises:
        OptionOutOfRange: as it says.
    """
    if not 0 <= layer < layers:
        raise OptionOutOfRange(f"layer must be among 0 … {layers - 1}, got {layer}. Name one of them.")


@contextmanager
def seeded() -> Iterator[None]:
    """Draws that are the same every time, and leave the caller's generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield
