"""What an observed run says of a model: its layers, their rotations and windows, and its position tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from hf_posenc.core.geometry import HostRotary, geometric
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.general.attention import CACHES, parameters_of
from hf_posenc.patches.general.blindness import REMEDY, check_alone, check_blindness
from hf_posenc.patches.general.check_inline import check_inline
from hf_posenc.patches.general.fit_rotation import ROUNDING, Fit, NotRotation, fit_rotation, nearest_known
from hf_posenc.patches.general.inline import Inline
from hf_posenc.patches.general.observation import (
    AttentionObservation,
    HeadShape,
    Observation,
    OpenMask,
    RotaryObservation,
    Stand,
    Zeros,
)
from hf_posenc.patches.general.observer import INTERFACE, Observer, inputs_of, observed, takes_positions
from hf_posenc.patches.general.stand_in import StandIn, stand_in

TOKENS = 16  # of a model that counts positions itself
FARTHEST = 1 << 15  # position at which a rotation is measured; in float32 its angles have 7 digits less 4


def positions_to_measure(config: Any) -> list[int]:
    """0 and the powers of two below the length for which a model's configuration states its frequencies."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)] or [parameters]
    stated = [one.get("original_max_position_embeddings") for one in nested]
    end = min([int(one) for one in stated if one] + [int(config.max_position_embeddings), FARTHEST + 1])
    return [0] + [1 << power for power in range(max(1, (end - 1).bit_length())) if 1 << power < end]


def observe(cls: type[nn.Module], config: Any) -> Observation:
    """How a base model of a class and configuration knows position, observed on a stand-in for it.

    Raises:
        UnsupportedModel: its positions cannot be told from what it computes.
    """
    with torch.device("cpu"):  # a loader may have chosen the meta device
        found = stand_in(cls, config, INTERFACE)
        model = found.model
        places = positions_to_measure(config) if takes_positions(model) else list(range(TOKENS))
        observer = Observer(torch.tensor([places]))
        with observed(model, observer):
            model(**inputs_of(model, observer.positions))
        seen = read(model, observer, places)
        if seen.tables:
            seen = as_numbered_by_itself(model, seen)
        check_inline(model, seen)
        check_blindness(model, seen)
        check_alone(model, seen)
    return of_all_layers(seen, found)


def as_numbered_by_itself(model: Any, seen: Observation) -> Observation:
    """Where position tables begin if the model numbers its tokens itself, and the number that it gives the first."""
    observer = Observer(torch.arange(TOKENS)[None], restored={"": seen.attentions[0]})
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
    names = in_all_layers(found, by_name)
    attentions = tuple(replace(by_name[own], name=name) for name, own in names.items())
    rotaries = {name: seen.rotaries[own] for name, own in in_all_layers(found, seen.rotaries).items()}
    return replace(seen, attentions=attentions, rotaries=rotaries)


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
    """The observation of a copy that has run."""
    if not observer.calls:
        raise UnsupportedModel(
            f"No attention of this {type(model).__name__} hands queries and keys to the AttentionInterface of "
            f"transformers once a call, so that it cannot be intercepted. {REMEDY}"
        )
    known = stated_frequencies(model, observer)
    found = []
    for number, (name, (call, handed)) in enumerate(observer.calls.items()):
        (query, key, seen), (plain_query, plain_key, _) = handed
        refuse_own_ways(model, seen)
        after, before = torch.cat((query, key), dim=1)[0], torch.cat((plain_query, plain_key), dim=1)[0]
        fit = fitted(model, number, before, after, places)
        fit = None if fit is None else nearest_known(fit, known, 10 * ROUNDING)
        rotary = None if fit is None else as_host_rotary(model, fit, query.shape[-1])
        template, rotations = template_of(observer, call, model.get_submodule(name))
        shape = HeadShape(query.shape[1], key.shape[1], query.shape[-1])
        first = 0 if fit is None else fit.first
        window = seen.get("sliding_window")
        inline = isinstance(model.get_submodule(name), Inline)
        found.append(AttentionObservation(name, template, rotations, shape, rotary, first, window, inline))
    mask = handed[0][2]["mask"]
    causal = mask is not None and bool(mask[0, 0, 0, -1] <= -1e4)
    if causal and observer.repeated:
        raise UnsupportedModel(
            f"An attention module of this {type(model).__name__} ({min(observer.repeated)}) computes several layers, "
            f"so that one call does not say which of them it is. {REMEDY}"
        )
    others = mixes_otherwise(model, [one.name for one in found])
    return Observation(tuple(found), observer.rotaries, observer.tables, causal, others)


def refuse_own_ways(model: Any, call: Mapping[str, Any]) -> None:
    """Refuse attention with a positional bias of its own, or over keys that another, rotated query has chosen.

    Raises:
        UnsupportedModel: it does.
    """
    chosen = [name for name, value in call.items() if "indices" in name and value is not None]
    biased = [name for name, value in call.items() if "bias" in name and value is not None]
    if biased:
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} is called with a bias of its own ({biased[0]}), which would "
            f"stay beside any scheme's. {REMEDY}"
        )
    if chosen:
        raise UnsupportedModel(
            f"Attention of this {type(model).__name__} looks at some keys only ({chosen[0]}), chosen by a query that "
            f"is rotated as well and that no scheme would reach. {REMEDY}"
        )


def fitted(model: Any, layer: int, before: Tensor, after: Tensor, places: list[int]) -> Fit | None:
    """The one rotation of a layer's queries and keys, ``[heads, position, head_dim]``.

    Raises:
        UnsupportedModel: they are changed in another way, or differently.
    """
    try:
        return fit_rotation(before, after, places)
    except NotRotation as error:
        raise UnsupportedModel(
            f"Layer {layer} of this {type(model).__name__} changes queries and keys by position in a way of its own: "
            f"{error}. {REMEDY}"
        ) from error


def bases_of(config: Any) -> list[float]:
    """RoPE's θ, of every kind of layer for which a configuration states one."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in parameters.values() if isinstance(one, Mapping)] or [parameters]
    return list(dict.fromkeys(float(one["rope_theta"]) for one in nested if one.get("rope_theta")))


def base_of(frequencies: tuple[float, ...], stated: list[float]) -> float:
    """RoPE's θ of some frequencies: the stated one, of several the one whose geometric series they are."""
    if len(stated) == 1:
        return stated[0]
    moving = [one for one in frequencies if one]
    measured = (moving[1] / moving[0]) ** -len(frequencies) if len(moving) > 1 else 10_000.0
    return min(stated, key=lambda base: abs(base - measured), default=measured)


def stated_frequencies(model: Any, observer: Observer) -> list[tuple[float, ...]]:
    """Frequencies that the model's configuration and the buffers of its rotary modules state, the most exact first."""
    sizes = {2 * buffer.numel() for name in observer.rotaries for buffer in model.get_submodule(name).buffers()}
    exact = [geometric(base, dims) for base in bases_of(model.config) for dims in sorted(sizes)]
    buffers = [
        tuple(buffer.double().flatten().tolist())
        for name in observer.rotaries
        for buffer in (*_fresh(model.get_submodule(name)), *model.get_submodule(name).buffers())
    ]
    return list(dict.fromkeys(exact + buffers))


def _fresh(rotary: Any) -> list[Tensor]:
    """Buffers of a rotary module made anew: a cast to half precision has rounded those it has."""
    try:
        return list(type(rotary)(rotary.config).buffers())
    except Exception:  # it has other arguments
        return []


def as_host_rotary(model: Any, fit: Fit, head_dim: int) -> HostRotary:
    """A measured rotation as schemes take it: what scales whole heads is a factor of logits."""
    rotation = fit.rotation
    frequencies: Any = rotation.frequencies
    base = base_of(frequencies, bases_of(model.config))
    if rotation.dims < head_dim:
        return HostRotary(rotation, base)
    return HostRotary(replace(rotation, amplitude=1.0), base, rotation.amplitude**2)


def template_of(
    observer: Observer, call: dict[str, Any], module: nn.Module
) -> tuple[dict[str, Any], dict[str, RotaryObservation]]:
    """A call with its tensors replaced by what they stand for, and the rotations among its arguments."""
    template: dict[str, Any] = {}
    hidden = call[parameters_of(type(module))[0]]
    rotations: dict[str, RotaryObservation] = {}
    for name, value in call.items():
        if id(value) in observer.rotations:
            rotary, args, kwargs, _ = observer.rotations[id(value)]
            kept = tuple(_stand_in(observer, one) for one in args)
            named = {key: _stand_in(observer, one) for key, one in kwargs.items()}
            rotations[name] = RotaryObservation(rotary, kept, named)
        elif name == parameters_of(type(module))[0]:
            last = value.shape[-1] == observer.positions.shape[1] != value.shape[1]
            template[name] = Stand.CHANNELS_FIRST if last else Stand.HIDDEN
        elif name in CACHES or isinstance(value, Cache):
            template[name] = None
        elif isinstance(value, Tensor):
            template[name] = mask_like(module, value) if "mask" in name else vectors_like(hidden, value)
        else:
            template[name] = value
    return template, rotations


def vectors_like(hidden: Tensor, value: Tensor) -> Stand | Zeros:
    """What stands for a tensor that an attention module is given beside its input."""
    if value.is_floating_point() and value.ndim == 3 and value.shape[-1] != hidden.shape[-1]:
        return Zeros(value.shape[-1])
    return Stand.HIDDEN if value.is_floating_point() else Stand.POSITIONS


def mask_like(module: nn.Module, mask: Tensor) -> Stand | OpenMask:
    """What stands for a mask: inline attention may want one even where it hides nothing."""
    value = mask.flatten()[0]
    opened = isinstance(module, Inline) and bool((mask == value).all())
    return OpenMask(mask.ndim, value.item(), mask.dtype) if opened else Stand.MASK


def _stand_in(observer: Observer, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return Stand.POSITIONS if not value.is_floating_point() else Stand.HIDDEN


def mixes_otherwise(model: nn.Module, attentions: list[str]) -> bool:
    """Whether other modules than attention mix tokens: some layers have none, or there are convolutions.

    Args:
        model: a base model.
        attentions: names of its attention modules, such as ``layers.3.self_attn``.
    """
    if any(isinstance(module, nn.Conv1d) and module.kernel_size != (1,) for module in model.modules()):
        return True
    parts = attentions[0].split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    if number is None:
        return False
    layers: Any = model.get_submodule(".".join(parts[:number]))
    return len({name.split(".")[number] for name in attentions}) < len(layers)
