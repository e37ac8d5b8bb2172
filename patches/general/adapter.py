"""The general adapter, for models without their own: it observes where a model keeps position."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from accelerate.utils import align_module_device
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import PosEncError, UnsupportedModel, first_line
from hf_posenc.forward.attention import PatchedAttention
from hf_posenc.forward.current_forward import FIRST_POSITION_ID, TOKEN_TYPES, USES_LOOKUP, KeepsForward
from hf_posenc.forward.positions import KEYWORD
from hf_posenc.patches.adapter import Adapter, causal_mask
from hf_posenc.patches.general.attention import OBSERVATION, OBSERVED, InterceptedAttention, goes_through_interface
from hf_posenc.patches.general.base_model import innermost
from hf_posenc.patches.general.blindness import REMEDY
from hf_posenc.patches.general.classes import above, below
from hf_posenc.patches.general.inline import InterceptedInlineAttention, attention_modules
from hf_posenc.patches.general.observation import SHAPES, IdentityRotary, Observation
from hf_posenc.patches.general.observe import observe
from hf_posenc.patches.shared.lookup_attention import LAYER, KeepsForwardAndCode
from hf_posenc.patches.shared.position_table import FIRST_ROW, SchemePositionTable, check_own_table, padded_to_width
from hf_posenc.patches.shared.rotary_host import AddsPositionCode
from hf_posenc.schemes.base import Scheme, implements

SCHEME_ENTRY = "position_scheme"
PATCH_ENTRIES = (SCHEME_ENTRY, "max_position_embeddings")  # prefixes of the configuration entries that a patch writes

NUMBER = re.compile(r"\.\d+")  # a layer number in the name of a module

_KNOWN: dict[tuple[type, str], Observation] = {}


class GeneralAdapter(Adapter):
    """Adapter of any model whose attention can be intercepted.

    An instance belongs to the model that `base_model` was called with.
    """

    name = "general"
    attention: ClassVar[dict[type[nn.Module], type[nn.Module]]] = {}
    base_class: ClassVar[type[nn.Module]] = type("NoClass", (nn.Module,), {})
    length_dependent = ("dynamic", "longrope")

    def __init__(self) -> None:
        self.base: Any = None

    def base_model(self, model: PreTrainedModel) -> PreTrainedModel | None:
        """The innermost model of transformers with token embeddings and attention; None if there is not exactly one."""
        self.base = innermost(model)
        if self.base is not None:
            self.name = self.base.config.model_type  # type: ignore[misc]
        return self.base

    @property
    def observation(self) -> Observation:
        """The observation of the model; cached for its class and configuration."""
        return self.base.__dict__.get(OBSERVATION) or self.observation_of(self.base.config)

    def observation_of(self, config: PreTrainedConfig) -> Observation:
        """The observation of a model of the same class with another configuration."""
        key = type(self.base), entries_of(config)
        if key not in _KNOWN:
            _KNOWN[key] = observed(type(self.base), config)
        return _KNOWN[key]

    def trained_length(self, config: PreTrainedConfig) -> int:
        if not isinstance(getattr(config, "max_position_embeddings", None), int):
            if hasattr(config, "max_source_positions"):  # frames of sound; encoders of text have none
                raise UnsupportedModel(
                    f"This {type(self.base).__name__} belongs to a model with an audio encoder, whose configuration "
                    "limits recordings and transcripts (max_source_positions, max_target_positions), not "
                    f"texts. {REMEDY}"
                )
            raise UnsupportedModel(
                f"{type(config).__name__} has no max_position_embeddings, so its trained length is unknown. {REMEDY}"
            )
        return min([super().trained_length(config), *self._table_lengths()])

    def _table_lengths(self) -> list[int]:
        tables = {name: self.base.get_submodule(name) for name in self.observation.tables}
        for name, table in tables.items():
            check_own_table(name, table, self.base)
        return [table.num_embeddings - self.observation.tables[name] for name, table in tables.items()]

    def _code_width(self, config: PreTrainedConfig) -> int:
        """Channels of the position tables, or of the layers to which positions are added."""
        tables = (self.base.get_submodule(name) for name in self.observation.tables)
        return next((table.embedding_dim for table in tables), config.hidden_size)

    def geometry(self, config: PreTrainedConfig, *, trained_length: int, target_length: int) -> Geometry:
        same = config is self.base.config or entries_of(config) == entries_of(self.base.config)
        seen = self.observation if same else self.observation_of(config)
        kinds = tuple(one.kind for one in seen.attentions)
        first = next((kind for kind in kinds if kind.rotary and kind.sees_all), None)
        first = first or next((kind for kind in kinds if kind.rotary), kinds[0])
        width, code_width = seen.attentions[0].width, self._code_width(config)
        return Geometry(
            heads=first.heads, kv_heads=first.kv_heads, head_dim=first.head_dim, width=width,
            layers=len(kinds), causal=seen.causal, trained_length=trained_length, target_length=target_length,
            rotary=first.rotary, table=min(self._table_lengths(), default=None),
            kinds=kinds if len(set(kinds)) > 1 or not first.sees_all else (),
            mixes_otherwise=seen.mixes_otherwise, embedding_width=None if code_width == width else code_width,
        )  # fmt: skip

    def attentions(self, base: nn.Module) -> Iterator[nn.Module]:
        return (base.get_submodule(one.name) for one in self.observation.attentions)

    def attention_count(self, base: nn.Module) -> int:
        """Number of attention modules whose names match observed ones up to the layer number."""
        patterns = {NUMBER.sub(".#", one.name) for one in self.observation.attentions}
        live = {id(module) for module in attention_modules(base)}
        return sum(NUMBER.sub(".#", name) in patterns for name, module in base.named_modules() if id(module) in live)

    def remembered(self, base: nn.Module) -> Iterator[tuple[str, str, Any]]:
        for one in self.observation.attentions:
            yield from ((one.name, name, value) for name, value in one.attributes.items())
        yield from ((name, "num_embeddings", rows) for name, rows in self.observation.rows.items())

    def patched_class(self, attention: nn.Module) -> type[nn.Module]:
        mixin = InterceptedAttention if goes_through_interface(attention) else InterceptedInlineAttention
        return above(type(attention), mixin)

    def swaps(self, base: nn.Module, scheme: Scheme) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
        for name in self.observation.rotaries:
            yield base.get_submodule(name), above(type(base.get_submodule(name)), IdentityRotary)
        for name in self.observation.tables:
            yield base.get_submodule(name), below(type(base.get_submodule(name)), SchemePositionTable)
        codes = implements(scheme, "embed") and not self.observation.tables
        # Layers that must keep the `ForwardContext` for recomputation in a backward pass; the first may add codes.
        layers = dict.fromkeys(self._layer_of(base, one.name) for one in self.observation.attentions if one.looks_up)
        for number, layer in enumerate(layers):
            if not isinstance(layer, PatchedAttention):
                yield layer, above(type(layer), KeepsForwardAndCode if codes and number == 0 else KeepsForward)
        if codes and not self.observation.attentions[0].looks_up:
            layer = self._layer_of(base, self.observation.attentions[0].name)
            yield layer, above(type(layer), AddsPositionCode)

    def attributes(self, base: nn.Module) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
        seen = self.observation
        yield base, {OBSERVATION: seen, FIRST_POSITION_ID: seen.numbered_from, TOKEN_TYPES: seen.token_types}
        yield base, {USES_LOOKUP: any(one.looks_up for one in seen.attentions)}
        for name, shape in seen.rotaries.items():
            yield base.get_submodule(name), {SHAPES: shape}
        for name, first in seen.tables.items():
            yield base.get_submodule(name), {FIRST_ROW: first}
        for number, one in zip(seen.layer_numbers, seen.attentions, strict=True):
            yield base.get_submodule(one.name), {OBSERVED: one, LAYER: number}

    def frozen(self, base: nn.Module, scheme: Scheme) -> Iterator[nn.Parameter]:
        if scheme.replaces_host and not scheme.keeps_table:
            for name in self.observation.tables:
                yield base.get_submodule(name).weight  # type: ignore[misc]

    def probe(self, base: Any, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        seen = self.observation
        first = self._layer_of(base, seen.attentions[0].name)
        if isinstance(first, AddsPositionCode):
            hidden = first.coded(hidden, positions)
        for name, row in seen.tables.items():
            table: Any = base.get_submodule(name)
            with align_module_device(table):  # loads the weights if accelerate has offloaded them
                if isinstance(table, SchemePositionTable):
                    code = SchemePositionTable.forward(table, positions + row)
                else:
                    code = nn.functional.embedding(positions + row, table.weight)
            hidden = hidden + padded_to_width(code, hidden.shape[-1])
        out = seen.attentions[layer].run(base, hidden, positions, self._mask(base, hidden))
        parts = tuple(out.values()) if isinstance(out, dict) else out
        mixed = parts[0] if isinstance(parts, tuple) else parts
        return mixed.transpose(1, 2) if seen.attentions[layer].channels_first else mixed

    def _mask(self, base: Any, hidden: Tensor) -> Tensor | None:
        uses_interface = not self.observation.attentions[0].inline
        if uses_interface and not self.observation.causal and not hasattr(next(self.attentions(base)), "is_causal"):
            length = hidden.shape[1]
            return hidden.new_zeros(1, 1, length, length)  # without a mask, SDPA of transformers would be causal
        masked = self.observation.causal and base.config._attn_implementation == "eager"
        return causal_mask(hidden) if masked else None

    def _layer_of(self, base: nn.Module, attention: str) -> nn.Module:
        """The layer that holds an attention module."""
        parts = attention.split(".")
        end = next((number for number, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
        return base.get_submodule(".".join(parts[: end + 1]))


def entries_of(config: PreTrainedConfig) -> str:
    """The entries of an unpatched configuration as JSON text, a cache key: rotations may depend on any of them."""
    current = config.to_dict()
    entries = {name: value for name, value in current.items() if not name.startswith(PATCH_ENTRIES)}
    length = (current.get(SCHEME_ENTRY) or {}).get("host_length", current.get("max_position_embeddings"))
    return json.dumps({**entries, "max_position_embeddings": length}, sort_keys=True, default=str)


def observed(cls: type[nn.Module], config: PreTrainedConfig) -> Observation:
    """Observation of a base model of this class and configuration.

    Raises:
        UnsupportedModel: the model cannot run on a few tokens, or a check of the observation fails.
    """
    try:
        return observe(cls, config)
    except PosEncError:
        raise
    except Exception as error:  # the forward pass of an unknown model may raise anything
        remedy = f"Restore the configuration if it was changed after the model was built. {REMEDY}"
        if KEYWORD in str(error):  # this keyword carries the positions and the padding of a call
            remedy = "Declare **kwargs in that forward, and pass them to its layers and their attention."
        raise UnsupportedModel(
            f"A {cls.__name__} cannot be observed on a few tokens: {type(error).__name__}: {first_line(error)}. "
            f"{remedy}"
        ) from error
