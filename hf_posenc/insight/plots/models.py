"""Sources of schemes to plot: shapes without weights, or a loaded model.

Learned parameters have their initial values, drawn with a fixed seed. In a model, a scheme reads the position table and
the projections of that model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

import torch
from annotated_types import Ge, MultipleOf
from torch import nn

from hf_posenc.core.geometry import Geometry, HostRotary, Rotation, geometric
from hf_posenc.core.lengths import resolve_lengths
from hf_posenc.core.record import SchemeRecord
from hf_posenc.core.settings import check_fields
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import AlreadyPatched, NothingStretched, OptionOutOfRange
from hf_posenc.forward.attention import LayerProjections
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.insight.plots.registry import Target
from hf_posenc.patches.shared.position_table import SchemePositionTable
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of, describe, is_patched
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import build as build_scheme
from hf_posenc.schemes.entry import Entry
from hf_posenc.schemes.spec import SchemeSpec, parts_of_spec, plan, plan_of_layer

Kind = Literal["llama", "gpt2", "bert"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BASE = 10_000.0
TABLE_STD = 0.02  # standard deviation of initial position tables in GPT-2 and BERT
SEED = 0


class Unpatched(Scheme):
    """The model's own positional encoding, unchanged. Unlike ``host``, it has no hooks that a plot could show."""

    record = SchemeRecord("unpatched", title="The model's own positions.")
    replaces_host = False


@dataclass(frozen=True)
class Shapes:
    """Shapes of a model without weights: rotary decoder (llama), decoder or encoder with a table (gpt2, bert).

    Attributes:
        kind: model type; None: the first kind that the scheme is defined for.
        width: hidden size and width of position embeddings; may differ from heads · head_dim.
    """

    kind: Kind | None = None
    heads: Annotated[int, Ge(1)] = 8
    head_dim: Annotated[int, Ge(2), MultipleOf(2)] = 64  # pairs are rotated
    width: Annotated[int, Ge(1)] = 128
    layers: Annotated[int, Ge(1)] = 4
    trained_length: Annotated[int, Ge(1)] = 256

    def __post_init__(self) -> None:
        check_fields(self, OptionOutOfRange)

    def geometry(self, kind: Kind, target_length: int) -> Geometry:
        """Build the `Geometry` that schemes are built for."""
        rotary = HostRotary(Rotation(geometric(BASE, self.head_dim)), BASE) if kind == "llama" else None
        return Geometry(
            heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim, width=self.width, layers=self.layers,
            causal=kind != "bert", trained_length=self.trained_length, target_length=target_length,
            rotary=rotary, table=self.trained_length if rotary is None else None,
        )  # fmt: skip

    @contextmanager
    def target(self, entry: Entry, lengths: Mapping[str, Any], layer: int = 0) -> Iterator[Target]:
        """Build the scheme of an entry with its initial parameters.

        Args:
            entry: the scheme with its options; without a scheme, the unpatched model.
            lengths: length arguments of `hf_posenc.patch_model`; those of the entry override them.
            layer: layer whose scheme is built.

        Raises:
            PosEncError: the scheme, an option or a length is refused.
        """
        chosen = plan(entry.scheme or Unpatched, entry.own_options)
        found = resolve_lengths(configured=self.trained_length, **{**lengths, **entry.lengths})
        kind = self.kind or first_kind(entry.scheme)
        geometry = replace(self, trained_length=found.trained).geometry(kind, found.target)
        check_layer(layer, geometry.layers)
        with torch.no_grad(), fixed_seed(SEED):
            built = build_scheme(plan_of_layer(chosen, layer, geometry.layers), geometry, kind).eval()
            built.reset_parameters()
            table = None if geometry.table is None else TABLE_STD * torch.randn(geometry.table, geometry.width)
            yield Target(entry.label, built, table, layer=layer)


@dataclass(frozen=True)
class Model:
    """A loaded model without a scheme, patched while a plot is computed and restored afterwards."""

    model: nn.Module = field(repr=False)

    @contextmanager
    def target(self, entry: Entry, lengths: Mapping[str, Any], layer: int = 0) -> Iterator[Target]:
        """Patch a scheme into the model inside the block; arguments as in `Shapes.target`.

        Raises:
            AlreadyPatched: the model carries a scheme.
        """
        if is_patched(self.model):
            raise AlreadyPatched(
                f"This model carries scheme {describe(self.model).scheme!r}. Plot the unpatched model, or in Python "
                "call Plot.numbers with Target(name, scheme_of(model))."
            )
        with scheme_set_aside(self.model):
            with fixed_seed(SEED), warnings.catch_warnings():
                warnings.simplefilter("ignore", NothingStretched)  # a plot chooses its lengths itself
                patch_model(self.model, entry.scheme or Unpatched, **{**lengths, **entry.options})
            with torch.no_grad(), fixed_seed(SEED):
                base, _ = base_model_of(self.model)
                attentions: list[Any] = base.__dict__[ATTENTIONS]
                check_layer(layer, len(attentions))
                attention = attentions[layer]
                table = next((m.weight for m in base.modules() if isinstance(m, SchemePositionTable)), None)
                yield Target(entry.label, attention.scheme, table, LayerProjections(attention), layer)


def first_kind(scheme: SchemeSpec | None) -> Kind:
    """Return the first kind of model that all parts of a scheme are defined for; if there is none, llama."""
    records = [cls.record for cls, _ in parts_of_spec(scheme or Unpatched)]
    geometries = {kind: Shapes().geometry(kind, Shapes.trained_length) for kind in KINDS}
    return next((kind for kind, one in geometries.items() if not any(r.unmet_needs(one) for r in records)), "llama")


def check_layer(layer: int, layers: int) -> None:
    """Refuse a layer that does not exist."""
    if not 0 <= layer < layers:
        raise OptionOutOfRange(f"layer must be among 0 … {layers - 1}, got {layer}. Name one of them.")
