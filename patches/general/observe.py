"""Observe a model: run a stand-in, and derive its layers, rotations, windows and position tables from the records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.geometry import LayerKind, Rotation
from hf_posenc.core.torch_state import float32_by_default
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.general.attention import parameters_of
from hf_posenc.patches.general.blindness import (
    REMEDY,
    check_alone,
    check_blindness,
    check_cached,
    check_inline,
    check_padding,
)
from hf_posenc.patches.general.call_template import template_of
from hf_posenc.patches.general.fit_rotation import NotRotation, fit_rotation, nearest_known
from hf_posenc.patches.general.observation import AttentionObservation, Observation, Stand
from hf_posenc.patches.general.observer import INTERFACE, ObservedInline, Observer, inputs_of, observed, takes_positions
from hf_posenc.patches.general.softmax_scale import with_softmax_scale
from hf_posenc.patches.general.stand_in import OWN_NUMBER, HankelProducts, StandIn, stand_in
from hf_posenc.patches.general.stated_frequencies import as_host_rotary, stated_frequencies, with_axes
from hf_posenc.patches.shared.rope_parameters import rotations

TOKENS = 16  # text length for models that count positions themselves
CHUNKED = "chunked_attention"  # entry of ``config.layer_types`` in transformers
WINDOW = "sliding_window"  # attribute of attention modules that keep their window
HIDDEN = -1e4  # a mask adds at most this number to the scores that it hides
FARTHEST = 1 << 15  # largest position at which a rotation is measured; 3 of 7 digits of its float32 angles are left


def positions_to_measure(config: Any) -> list[int]:
    """Zero and the powers of two below the length for which the configuration defines the frequencies."""
    stated = [one.get("original_max_position_embeddings") for one in rotations(config).values()]
    end = min([int(one) for one in stated if one] + [int(config.max_position_embeddings), FARTHEST + 1])
    return [0] + [1 << power for power in range(max(1, (end - 1).bit_length())) if 1 << power < end]


def observe(cls: type[nn.Module], config: Any) -> Observation:
    """Observation of a base model of this class and configuration, measured on a stand-in."""
    with torch.device("cpu"), float32_by_default():  # a loader may have chosen the meta device, and the model's dtype
        replica = stand_in(cls, config, INTERFACE)
        with HankelProducts():
            seen = with_softmax_scale(observe_model(replica.model, config), replica.model, config)
    return extended_to_all_layers(seen, replica)


def observe_model(model: Any, config: Any) -> Observation:
    """Observation of a stand-in, after all checks of it."""
    places = positions_to_measure(config) if takes_positions(model) else list(range(TOKENS))
    observer = Observer(torch.tensor([places]), measures=True)
    with observed(model, observer):
        model(**inputs_of(model, observer.positions))
    seen = observation_from(model, observer, places)
    if seen.tables:
        seen = as_numbered_by_itself(model, seen)
    check_inline(model, seen)
    check_padding(model, seen)
    check_cached(model, seen)
    check_blindness(model, seen)
    check_alone(model, seen)
    return with_axes(model, seen)


def as_numbered_by_itself(model: Any, seen: Observation) -> Observation:
    """The observation with the first row of each table, and the first position that the model itself assigns."""
    observer = Observer(torch.arange(TOKENS)[None])
    call = inputs_of(model, observer.positions)
    call.pop("position_ids", None)
    with observed(model, observer):
        model(**call)
    name = min(seen.tables)
    types = any("token_type_ids" in module._buffers for module in model.modules())
    first = observer.tables[name] - seen.tables[name] if takes_positions(model) else None
    return replace(seen, tables=observer.tables, numbered_from=first, token_types=types)


def extended_to_all_layers(seen: Observation, replica: StandIn) -> Observation:
    """The observation of a stand-in, extended to all layers of the model it stands for."""
    if replica.layers is None:
        return seen
    by_name = {one.name: one for one in seen.attentions}
    attentions = tuple(renamed(by_name[own], name) for name, own in in_all_layers(replica, by_name).items())
    rotaries = {name: seen.rotaries[own] for name, own in in_all_layers(replica, seen.rotaries).items()}
    return replace(seen, attentions=attentions, rotaries=rotaries)


def renamed(one: AttentionObservation, name: str) -> AttentionObservation:
    """An attention observation for the same module in another layer; its call gets the number of that layer."""
    old, new = (next((int(part) for part in path.split(".") if part.isdigit()), None) for path in (one.name, name))
    numbers = {key: new for key, value in one.call.items() if key in OWN_NUMBER and value == old}
    return replace(one, name=name, call={**one.call, **numbers})


def in_all_layers(replica: StandIn, names: Iterable[str]) -> dict[str, str]:
    """For each module of a model, in layer order, the name of the equal module in its stand-in."""
    start = f"{replica.layers}."
    inside: dict[int, list[str]] = {}
    for name in names:
        if name.startswith(start):
            number, _, suffix = name[len(start) :].partition(".")
            inside.setdefault(int(number), []).append(suffix)
    outside = {name: name for name in names if not name.startswith(start)}
    return outside | {
        f"{start}{number}.{suffix}": f"{start}{kind}.{suffix}"
        for number, kind in enumerate(replica.kinds)
        for suffix in inside.get(kind, [])
    }


def observation_from(model: Any, observer: Observer, places: list[int]) -> Observation:
    """The observation that the records of a forward pass give.

    Raises:
        UnsupportedModel: no attention was recorded, or a scheme cannot replace its positions.
    """
    if not observer.calls:
        raise UnsupportedModel(
            f"No attention of this {type(model).__name__} passes queries and keys to the AttentionInterface of "
            f"transformers once a call, so it cannot be intercepted. {REMEDY}"
        )
    refuse_shared_keys(model, {name: call.rotated.key for name, call in observer.calls.items()})
    known = stated_frequencies(model, observer)
    attentions = tuple(
        attention_observation(model, observer, number, name, known, places)
        for number, name in enumerate(observer.calls)
    )
    masks = [call.rotated.keywords["mask"] for call in observer.calls.values()]
    # A window of an encoder hides only tokens that are farther away than token 1 is from token 0.
    causal = any(mask is not None and bool(mask[0, 0, 0, 1] <= HIDDEN) for mask in masks)
    if causal and observer.repeated:
        raise UnsupportedModel(
            f"An attention module of this {type(model).__name__} ({min(observer.repeated)}) computes several layers, "
            f"so a call does not identify its layer. {REMEDY}"
        )
    mixes = mixes_otherwise(model, [one.name for one in attentions])
    rows = {name: model.get_submodule(name).num_embeddings for name in observer.tables}
    return Observation(attentions, observer.rotaries, observer.tables, causal, mixes, rows=rows)


def attention_observation(
    model: Any, observer: Observer, number: int, name: str, known: list[tuple[float, ...]], places: list[int]
) -> AttentionObservation:
    """The observation of one attention module, number ``number``, from its recorded call."""
    call, module = observer.calls[name], model.get_submodule(name)
    query, key, keywords = call.rotated
    refuse_other_attention(model, keywords, query.shape[2], key.shape[2])
    before, after = (torch.cat((one.query, one.key), dim=1)[0] for one in (call.silent, call.rotated))
    fit, first = fitted(model, number, before, after, places)
    rotary = None if fit is None else as_host_rotary(model, nearest_known(fit, known), query.shape[-1])
    template, parameters = template_of(observer, call.arguments, module), parameters_of(type(module))
    channels = 1 if template[parameters[0]] is Stand.CHANNELS_FIRST else -1
    return AttentionObservation(
        name, template,
        LayerKind(query.shape[1], key.shape[1], query.shape[-1], rotary, keywords.get(WINDOW), chunk_of(module)),
        first=first, width=call.arguments[parameters[0]].shape[channels],
        parameters=parameters, inline=isinstance(module, ObservedInline), receives_keywords=call.receives_keywords,
        attributes={WINDOW: vars(module)[WINDOW]} if WINDOW in vars(module) else {},
    )  # fmt: skip


def chunk_of(attention: Any) -> int | None:
    """Chunk length of a layer with chunked attention, from its configuration; None for other layers."""
    config, number = getattr(attention, "config", None), getattr(attention, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None or number is None or kinds[number : number + 1] != [CHUNKED]:
        return None
    return int(config.attention_chunk_size)


def refuse_shared_keys(model: Any, keys: Mapping[str, Tensor]) -> None:
    """Refuse a model in which layers attend to the keys of an earlier layer, which that layer has rotated.

    The earlier layer passes these keys on outside its KV cache, where no scheme reaches them.
    """
    earlier: dict[str, Tensor] = {}
    for name, own_key in keys.items():
        source = next(
            (other for other, key in earlier.items() if key.shape == own_key.shape and torch.equal(key, own_key)), None
        )
        if source is not None:
            shared = getattr(model.config, "num_kv_shared_layers", None)
            setting = f" (num_kv_shared_layers={shared})" if shared else ""
            raise UnsupportedModel(
                f"Layers of this {type(model).__name__} share keys{setting}: {name} attends to the keys of {source}, "
                f"which that layer has rotated, not the scheme of {name}. {REMEDY}"
            )
        earlier[name] = own_key


def refuse_other_attention(model: Any, call: Mapping[str, Any], tokens: int, keys: int) -> None:
    """Refuse attention with its own positional bias, over selected keys, or over keys of several tokens."""
    chosen = [name for name, value in call.items() if "indices" in name and value is not None]
    biased = [name for name, value in call.items() if "bias" in name and value is not None]
    if biased:
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} adds its own bias ({biased[0]}), which would "
            f"be added to any scheme's. {REMEDY}"
        )
    if isinstance(mask := call["mask"], Tensor) and bool(((mask != 0) & (mask > HIDDEN)).any()):
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} adds numbers of its own to its scores through the attention "
            f"mask, which would be added to any scheme's. {REMEDY}"
        )
    if chosen:
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} reads only some keys ({chosen[0]}), selected by a separate "
            f"rotated query that no scheme would reach. {REMEDY}"
        )
    if keys != tokens:  # DeepSeek V4 adds keys that each compress several
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} sees {keys} keys where {tokens} tokens are in reach: some "
            f"stand for several tokens, and have positions that no scheme would reach. {REMEDY}"
        )


def fitted(model: Any, layer: int, before: Tensor, after: Tensor, places: list[int]) -> tuple[Rotation | None, int]:
    """Rotation that a layer applies to queries and keys ``[heads, position, head_dim]`` or None, and its channel."""
    try:
        return fit_rotation(before, after, places)
    except NotRotation as error:
        raise UnsupportedModel(
            f"Layer {layer} of this {type(model).__name__} changes queries and keys by position in its own way, or "
            f"does not use position_ids: {error}. {REMEDY}"
        ) from error


def mixes_otherwise(model: nn.Module, attentions: list[str]) -> bool:
    """Whether modules other than attention mix tokens: the model has convolutions, or layers without attention."""
    if any(isinstance(module, nn.Conv1d) and module.kernel_size != (1,) for module in model.modules()):
        return True
    parts = attentions[0].split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    if number is None:
        return False
    layers: Any = model.get_submodule(".".join(parts[:number]))
    return len({name.split(".")[number] for name in attentions}) < len(layers)
