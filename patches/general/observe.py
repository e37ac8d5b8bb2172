"""Observe a model on a few tokens: its attention calls, rotary modules and position tables, and measure its rotation.

A copy of the model is run, which shares its weights: the live model may be in use. Every attention module of the copy
is called twice with the same input, as its layer calls it and with a rotation by nothing; queries and keys, which both
calls hand to the attention function, give the rotation.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from hf_posenc.core.geometry import HostRotary, geometric
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patches.general.attention import CACHES, goes_through_interface, parameters_of
from hf_posenc.patches.general.classes import below
from hf_posenc.patches.general.fit_rotation import ROUNDING, Fit, NotRotation, fit_rotation, nearest_known
from hf_posenc.patches.general.observation import (
    AttentionObservation,
    Observation,
    RotaryObservation,
    Stand,
    identity_like,
)

INTERFACE = "hf_posenc_observer"
FARTHEST = 1 << 15  # position at which a rotation is measured; in float32 its angles have 7 digits less 4
OBSERVER = "posenc_observer"


@dataclass
class Observer:
    """Takes notes while a copy of a model runs."""

    positions: Tensor
    silent: bool = False
    rotations: dict[int, tuple[str, tuple[Any, ...], Mapping[str, Any], Any]] = field(default_factory=dict)
    rotaries: dict[str, tuple[int, tuple[int, ...], bool]] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    calls: dict[str, tuple[dict[str, Any], list[tuple[Tensor, Tensor, dict[str, Any]]]]] = field(default_factory=dict)
    handed: list[tuple[Tensor, Tensor, dict[str, Any]]] = field(default_factory=list)


def hand_over(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **call: Any) -> tuple[Tensor, None]:
    """The attention function of an observed copy: notes queries and keys, and attends eagerly."""
    observer: Observer = module.__dict__[OBSERVER]
    observer.handed.append((query, key, {**call, "value": value, "mask": mask}))
    scaling = call.get("scaling") or query.shape[-1] ** -0.5
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * scaling
    scores = scores if mask is None else scores + mask[..., : key.shape[2]]
    return (scores.softmax(-1) @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), None


AttentionInterface.register(INTERFACE, hand_over)
AttentionMaskInterface.register(INTERFACE, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def copy_sharing_weights(base: nn.Module) -> nn.Module:
    """A copy of a module and all in it, with the same parameter and buffer tensors, in evaluation mode."""
    shared: dict[int, Any] = {id(one): one for one in (*base.parameters(), *base.buffers())}
    return copy.deepcopy(base, shared).eval()


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
    places = positions_to_measure(base.config)
    device = next(base.parameters()).device
    observer = Observer(torch.tensor([places], device=device))
    model = copy_sharing_weights(base)
    model.config._attn_implementation_internal = INTERFACE
    with torch.no_grad(), ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(_noted(observer, name, module))
        model(**inputs_of(model, observer.positions))
    return read(model, observer, places)


def inputs_of(model: Any, positions: Tensor) -> dict[str, Any]:
    """A call of a base model on as many tokens as there are ``positions [1, token]``."""
    vocabulary = model.get_input_embeddings().num_embeddings
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(min(3, vocabulary - 1), vocabulary, positions.shape, generator=draw).to(positions.device)
    given = {"input_ids": ids}
    takes = inspect.signature(type(model).forward).parameters
    if "position_ids" in takes:
        given["position_ids"] = positions
    if "use_cache" in takes:
        given["use_cache"] = False
    return given


@contextmanager
def _noted(observer: Observer, name: str, module: nn.Module) -> Iterator[None]:
    """Take notes of the calls of one module while the block runs."""
    handles: list[Any] = []
    if goes_through_interface(module):
        module.__dict__[OBSERVER] = observer
        note = partial(_note_attention, observer, name)
        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    elif isinstance(module, nn.Embedding):
        module.__dict__[OBSERVER] = partial(_note_table, observer, name)
        module.__class__ = below(type(module), ObservedTable)
    elif not any(True for _ in module.parameters()):
        handles.append(module.register_forward_hook(partial(_note_rotation, observer, name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note_rotation(observer: Observer, name: str, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    nothing = identity_like(out)
    if nothing is None:
        return None
    one = out if isinstance(out, Tensor) else out[0]
    axes = 2 if one.shape[:2] == observer.positions.shape else 1
    if one.shape[:axes] != observer.positions.shape[-axes:]:
        return None
    observer.rotaries[name] = (axes, tuple(one.shape[axes:]), isinstance(out, Tensor))
    observer.rotations[id(out)] = (name, args, kwargs, out)
    return nothing if observer.silent else None


class ObservedTable(nn.Embedding):
    """Mixin of an embedding of an observed copy: notes which rows are read."""

    prefix = "Observed"

    def forward(self, rows: Tensor) -> Tensor:  # type: ignore[override]
        """As of `nn.Embedding`."""
        self.__dict__[OBSERVER](rows)
        return super().forward(rows)


def _note_table(observer: Observer, name: str, rows: Any) -> None:
    if not isinstance(rows, Tensor) or rows.shape[-1:] != observer.positions.shape[-1:]:
        return
    offset = rows.reshape(-1, rows.shape[-1])[:1] - observer.positions
    if bool((offset == offset[..., :1]).all()):
        observer.tables[name] = int(offset[0, 0])


def _note_attention(observer: Observer, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
    """Call the module twice before its layer does: as it will be called, and with a rotation by nothing."""
    if observer.silent or OBSERVER in kwargs:
        return
    call = dict(zip(parameters_of(type(module)), args, strict=False)) | kwargs
    if name in observer.calls:  # weights that several layers share
        return
    forward = type(module).forward
    observer.handed = handed = []
    forward(module, **call)
    observer.silent = True
    try:
        silenced = {key: identity_like(v) if id(v) in observer.rotations else v for key, v in call.items()}
        forward(module, **silenced)
    finally:
        observer.silent = False
    observer.handed = []
    if len(handed) == 2:
        observer.calls[name] = (call, handed)


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
    shapes = {"heads": query.shape[1], "kv_heads": handed[0][1].shape[1], "head_dim": query.shape[-1]}
    return Observation(tuple(found), observer.rotaries, observer.tables, causal=causal, **shapes)


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
