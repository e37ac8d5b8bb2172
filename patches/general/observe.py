"""What an observed run says of a model: its layers, their rotations and windows, and its position tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from hf_posenc.core.geometry import HostRotary, geometric
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.general.attention import CACHES, parameters_of
from hf_posenc.patches.general.blindness import check_blindness
from hf_posenc.patches.general.fit_rotation import ROUNDING, Fit, NotRotation, fit_rotation, nearest_known
from hf_posenc.patches.general.observation import (
    AttentionObservation,
    Observation,
    RotaryObservation,
    Stand,
)
from hf_posenc.patches.general.observer import Observer, copy_sharing_weights, inputs_of, observed, takes_positions

TOKENS = 16  # of a model that counts positions itself
FARTHEST = 1 << 15  # position at which a rotation is measured; in float32 its angles have 7 digits less 4


def positions_to_measure(config: Any) -> list[int]:
    """0 and the powers of two below the length for which a model's configuration states its frequencies."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)] or [parameters]
    stated = [one.get("original_max_position_embeddings") for one in nested]
    end = min([int(one) for one in stated if one] + [int(config.max_position_embeddings), FARTHEST + 1])
    return [0] + [1 << power for power in range(max(1, (end - 1).bit_length())) if 1 << power < end]


def observe(base: Any) -> Observation:
    """How a base model knows position, observed on a copy of it.

    Raises:
        UnsupportedModel: its positions cannot be told from what it computes.
    """
    places = positions_to_measure(base.config) if takes_positions(base) else list(range(TOKENS))
    observer = Observer(torch.tensor([places], device=next(base.parameters()).device))
    model = copy_sharing_weights(base)
    with observed(model, observer):
        model(**inputs_of(model, observer.positions))
    seen = read(model, observer, places)
    check_blindness(model, seen)
    return seen


def read(model: Any, observer: Observer, places: list[int]) -> Observation:
    """The observation of a copy that has run."""
    if not observer.calls:
        raise UnsupportedModel(
            f"No attention of this {type(model).__name__} goes through the AttentionInterface of transformers, so that "
            "it cannot be intercepted. Write an adapter for it (see docs/add-model.md)."
        )
    known = stated_frequencies(model, observer)
    found = []
    for number, (name, (call, handed)) in enumerate(observer.calls.items()):
        (query, key, seen), (plain_query, plain_key, _) = handed
        rounding = ROUNDING.get(query.dtype, max(ROUNDING.values()))
        try:
            fits = [
                fit_rotation(before[0], after[0], places, rounding)
                for before, after in ((plain_query, query), (plain_key, key))
            ]
        except NotRotation as error:
            raise UnsupportedModel(
                f"Layer {number} of this {type(model).__name__} changes queries and keys by position in a way of its "
                f"own: {error}. Write an adapter for it (see docs/add-model.md)."
            ) from error
        fit = agreed(model, number, fits, rounding)
        if fit is not None:
            fit = nearest_known(fit, known, 10 * rounding)
        rotary = None if fit is None else as_host_rotary(model, fit, query.shape[-1])
        template, rotations = template_of(observer, call, model.get_submodule(name))
        window = seen.get("sliding_window")
        first = 0 if fit is None else fit.first
        found.append(AttentionObservation(name, template, rotations, rotary, first, window))
    query = handed[0][0]
    mask = handed[0][2]["mask"]
    causal = mask is not None and bool(mask[0, 0, 0, -1] <= -1e4)
    others = mixes_otherwise(model, [one.name for one in found])
    shapes = {"heads": query.shape[1], "kv_heads": handed[0][1].shape[1], "head_dim": query.shape[-1]}
    return Observation(tuple(found), observer.rotaries, observer.tables, causal=causal, mixes_otherwise=others, **shapes)


def agreed(model: Any, layer: int, fits: list[Fit | None], rounding: float) -> Fit | None:
    """The one rotation of queries and keys.

    Raises:
        UnsupportedModel: they are rotated differently.
    """
    query, key = fits
    if query is None and key is None:
        return None
    if query is not None and key is not None and (query.first, query.rotation.layout) == (key.first, key.rotation.layout):
        pairs = zip(query.rotation.frequencies, key.rotation.frequencies, strict=False)  # type: ignore[arg-type]
        if all(abs(a - b) <= 10 * rounding * abs(a) + rounding * 1e-3 for a, b in pairs):
            return query
    raise UnsupportedModel(
        f"Layer {layer} of this {type(model).__name__} rotates queries otherwise than keys. "
        "Write an adapter for it (see docs/add-model.md)."
    )


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
    rotations: dict[str, RotaryObservation] = {}
    for name, value in call.items():
        if id(value) in observer.rotations:
            rotary, args, kwargs, _ = observer.rotations[id(value)]
            kept = tuple(_stand_in(observer, one) for one in args)
            named = {key: _stand_in(observer, one) for key, one in kwargs.items()}
            rotations[name] = RotaryObservation(rotary, kept, named)
        elif name == parameters_of(type(module))[0]:
            template[name] = Stand.HIDDEN
        elif name in CACHES or isinstance(value, Cache):
            template[name] = None
        elif isinstance(value, Tensor):
            template[name] = Stand.MASK if "mask" in name else _stand_in(observer, value)
        else:
            template[name] = value
    return template, rotations


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
    if any(isinstance(module, nn.Conv1d) for module in model.modules()):
        return True
    parts = attentions[0].split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    if number is None:
        return False
    layers: Any = model.get_submodule(".".join(parts[:number]))
    return len({name.split(".")[number] for name in attentions}) < len(layers)
