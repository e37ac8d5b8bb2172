"""What an observed run says of a model: its layers, their rotations and windows, and its position tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.core.geometry import LayerKind
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
from hf_posenc.patches.general.fit_rotation import ROUNDING, NotRotation, RotationFit, fit_rotation, nearest_known
from hf_posenc.patches.general.inline import Inline
from hf_posenc.patches.general.observation import AttentionObservation, Observation, Stand
from hf_posenc.patches.general.observer import INTERFACE, Observer, inputs_of, observed, takes_positions
from hf_posenc.patches.general.softmax_scale import with_softmax_scale
from hf_posenc.patches.general.stand_in import OWN_NUMBER, HankelProducts, StandIn, stand_in
from hf_posenc.patches.general.stated_frequencies import as_host_rotary, stated_frequencies, with_axes
from hf_posenc.patches.shared.rope_parameters import rotations

TOKENS = 16  # of a model that counts positions itself
CHUNKED = "chunked_attention"  # transformers' name for it, in ``config.layer_types``
WINDOW = "sliding_window"  # what attention modules call it, if they keep it themselves
HIDDEN = -1e4  # a mask adds less than this to scores that it hides
FARTHEST = 1 << 15  # position at which a rotation is measured; in float32 its angles have 7 digits less 4


def positions_to_measure(config: Any) -> list[int]:
    """0 and the powers of two below the length for which a model's configuration states its frequencies."""
    stated = [one.get("original_max_position_embeddings") for one in rotations(config).values()]
    end = min([int(one) for one in stated if one] + [int(config.max_position_embeddings), FARTHEST + 1])
    return [0] + [1 << power for power in range(max(1, (end - 1).bit_length())) if 1 << power < end]


def observe(cls: type[nn.Module], config: Any) -> Observation:
    """How a base model of a class and configuration knows position, observed on a stand-in for it."""
    with torch.device("cpu"), float32_by_default():  # a loader may have chosen the meta device, and the model's dtype
        found = stand_in(cls, config, INTERFACE)
        with HankelProducts():
            seen = with_softmax_scale(observe_model(found.model, config), found.model, config)
    return of_all_layers(seen, found)


def observe_model(model: Any, config: Any) -> Observation:
    """How a stand-in knows position."""
    places = positions_to_measure(config) if takes_positions(model) else list(range(TOKENS))
    observer = Observer(torch.tensor([places]), measures=True)
    with observed(model, observer):
        model(**inputs_of(model, observer.positions))
    seen = read(model, observer, places)
    if seen.tables:
        seen = as_numbered_by_itself(model, seen)
    check_inline(model, seen)
    check_padding(model, seen)
    check_cached(model, seen)
    check_blindness(model, seen)
    check_alone(model, seen)
    return with_axes(model, seen)


def as_numbered_by_itself(model: Any, seen: Observation) -> Observation:
    """Where position tables begin if the model numbers its tokens itself, and the number that it gives the first."""
    observer = Observer(torch.arange(TOKENS)[None])
    call = inputs_of(model, observer.positions)
    call.pop("position_ids", None)
    with observed(model, observer):
        model(**call)
    name = min(seen.tables)
    types = any("token_type_ids" in module._buffers for module in model.modules())
    first = observer.tables[name] - seen.tables[name] if takes_positions(model) else None
    return replace(seen, tables=observer.tables, numbered_from=first, token_types=types)


def of_all_layers(seen: Observation, found: StandIn) -> Observation:
    """An observation of a stand-in, for all layers of the model it stands for."""
    if found.layers is None:
        return seen
    by_name = {one.name: one for one in seen.attentions}
    attentions = tuple(of_layer(by_name[own], name) for name, own in in_all_layers(found, by_name).items())
    rotaries = {name: seen.rotaries[own] for name, own in in_all_layers(found, seen.rotaries).items()}
    return replace(seen, attentions=attentions, rotaries=rotaries)


def of_layer(one: AttentionObservation, name: str) -> AttentionObservation:
    """An observed attention module as that of another layer, whose number its call may say."""
    here, there = (next((int(part) for part in of.split(".") if part.isdigit()), None) for of in (one.name, name))
    numbered = {key: there for key, value in one.call.items() if key in OWN_NUMBER and value == here}
    return replace(one, name=name, call={**one.call, **numbered})


def in_all_layers(found: StandIn, names: Iterable[str]) -> dict[str, str]:
    """Names of modules of a model, in the order of its layers, and of those in its stand-in that are of their kind."""
    start = f"{found.layers}."
    inside: dict[int, list[str]] = {}
    for name in names:
        if name.startswith(start):
            number, _, rest = name[len(start) :].partition(".")
            inside.setdefault(int(number), []).append(rest)
    outside = {name: name for name in names if not name.startswith(start)}
    return outside | {
        f"{start}{number}.{rest}": f"{start}{kind}.{rest}"
        for number, kind in enumerate(found.kinds)
        for rest in inside.get(kind, [])
    }


def read(model: Any, observer: Observer, places: list[int]) -> Observation:
    """The observation of a stand-in that has run."""
    if not observer.calls:
        raise UnsupportedModel(
            f"No attention of this {type(model).__name__} hands queries and keys to the AttentionInterface of "
            f"transformers once a call, so it cannot be intercepted. {REMEDY}"
        )
    refuse_shared_keys(model, {name: call.rotated[1] for name, call in observer.calls.items()})
    known = stated_frequencies(model, observer)
    found = []
    for number, (name, call) in enumerate(observer.calls.items()):
        (query, key, seen), (plain_query, plain_key, _) = call.rotated, call.silent
        refuse_own_ways(model, seen)
        refuse_joint_keys(model, query.shape[2], key.shape[2])
        after, before = torch.cat((query, key), dim=1)[0], torch.cat((plain_query, plain_key), dim=1)[0]
        fit = fitted(model, number, before, after, places)
        fit = None if fit is None else nearest_known(fit, known, 10 * ROUNDING)
        rotary = None if fit is None else as_host_rotary(model, fit, query.shape[-1])
        module = model.get_submodule(name)
        sees = seen.get(WINDOW), chunk_of(module)
        kind = LayerKind(query.shape[1], key.shape[1], query.shape[-1], rotary, *sees)
        template = template_of(observer, call.arguments, module)
        parameters, first = parameters_of(type(module)), 0 if fit is None else fit.first
        width = call.arguments[parameters[0]].shape[1 if template[parameters[0]] is Stand.CHANNELS_FIRST else -1]
        inline = isinstance(module, Inline)
        observed_call = first, width, parameters, inline, call.receives_keywords
        held = {WINDOW: vars(module)[WINDOW]} if WINDOW in vars(module) else {}
        found.append(AttentionObservation(name, template, kind, *observed_call, held=held))
    causal = any(hides_the_next(call.rotated[2]["mask"]) for call in observer.calls.values())
    if causal and observer.repeated:
        raise UnsupportedModel(
            f"An attention module of this {type(model).__name__} ({min(observer.repeated)}) computes several layers, "
            f"so a call does not tell which of them it is. {REMEDY}"
        )
    others = mixes_otherwise(model, [one.name for one in found])
    rows = {name: model.get_submodule(name).num_embeddings for name in observer.tables}
    return Observation(tuple(found), observer.rotaries, observer.tables, causal, others, rows=rows)


def chunk_of(attention: Any) -> int | None:
    """Length of the parts of a text that see nothing of each other in a layer; only its configuration says so."""
    config, number = getattr(attention, "config", None), getattr(attention, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None or number is None or kinds[number : number + 1] != [CHUNKED]:
        return None
    return int(config.attention_chunk_size)


def hides_the_next(mask: Tensor | None) -> bool:
    """Whether the first token does not see the second; a sliding window hides what is farther away in encoders, too."""
    return mask is not None and bool(mask[0, 0, 0, 1] <= HIDDEN)


def refuse_shared_keys(model: Any, keys: Mapping[str, Tensor]) -> None:
    """Refuse a model with layers that have no keys, and attend to those of an earlier layer, which has rotated them.

    A scheme would have to reach what that layer hands on besides its KV cache, and sliding layers keep more of it.
    """
    earlier: dict[str, Tensor] = {}
    for name, own in keys.items():
        source = next(
            (other for other, key in earlier.items() if key.shape == own.shape and torch.equal(key, own)), None
        )
        if source is not None:
            shared = getattr(model.config, "num_kv_shared_layers", None)
            said = f" (num_kv_shared_layers={shared})" if shared else ""
            raise UnsupportedModel(
                f"Layers of this {type(model).__name__} share keys{said}: {name} attends to those of {source}, "
                f"which are rotated there and not by its own scheme. {REMEDY}"
            )
        earlier[name] = own


def refuse_own_ways(model: Any, call: Mapping[str, Any]) -> None:
    """Refuse attention with a positional bias of its own, or over keys that another, rotated query has chosen."""
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
            f"Attention of this {type(model).__name__} reads only some keys ({chosen[0]}), chosen by a query that "
            f"is rotated as well and that no scheme would reach. {REMEDY}"
        )


def refuse_joint_keys(model: Any, tokens: int, keys: int) -> None:
    """Refuse attention with keys beside those of its tokens, as of DeepSeek V4, which compresses several into one."""
    if keys != tokens:
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} sees {keys} keys where {tokens} tokens are in reach: some stand "
            f"for several tokens, and have positions that no scheme would reach. {REMEDY}"
        )


def fitted(model: Any, layer: int, before: Tensor, after: Tensor, places: list[int]) -> RotationFit | None:
    """The one rotation of a layer's queries and keys, ``[heads, position, head_dim]``."""
    try:
        return fit_rotation(before, after, places)
    except NotRotation as error:
        raise UnsupportedModel(
            f"Layer {layer} of this {type(model).__name__} changes queries and keys by position in its own way, or "
            f"not by position_ids: {error}. {REMEDY}"
        ) from error


def mixes_otherwise(model: nn.Module, attentions: list[str]) -> bool:
    """Whether other modules than attention mix tokens: some layers have none, or there are convolutions."""
    if any(isinstance(module, nn.Conv1d) and module.kernel_size != (1,) for module in model.modules()):
        return True
    parts = attentions[0].split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    if number is None:
        return False
    layers: Any = model.get_submodule(".".join(parts[:number]))
    return len({name.split(".")[number] for name in attentions}) < len(layers)
