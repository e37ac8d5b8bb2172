"""Cases whose patch is wrong, and modifications of a patched model, that fail one check each: negative controls."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.cache.key_positions import RECORD
from hf_posenc.checks import Case
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.host_calls import cache_name
from hf_posenc.forward.mix import RotatedCall
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import scheme_of


class NoPatch(Case):
    """A patch that reports success and does nothing."""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        return model

    def clip_length(self, wanted: int, model: Any) -> int:
        return wanted


class IgnoresPeftModels(Case):
    """A patch that does nothing to a model wrapped by PEFT."""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        return model if hasattr(model, "peft_config") else super().apply(model)


class Modified(Case):
    """A correct case whose patched model, or its environment, is then modified.

    Args:
        modify: modifies the patched model, and returns a function that undoes it.
        case: the correct case.
    """

    def __init__(self, modify: Callable[[PreTrainedModel], Callable[[], None]], case: Case) -> None:
        super().__init__(case.model, case.scheme, **case.options)
        self.modify, self.undo = modify, lambda: None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        model = super().apply(model)
        self.undo = self.modify(model)
        return model

    @contextmanager
    def unpatched(self) -> Iterator[PreTrainedModel]:
        try:
            with super().unpatched() as model:
                yield model
        finally:
            self.undo()


Modify = Callable[[PreTrainedModel], Callable[[], None]]


def before_forward(edit: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> Modify:
    """The keywords of every forward pass of the base model, edited."""

    def modify(model: PreTrainedModel) -> Callable[[], None]:
        def edited(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            return args, edit(module, kwargs)

        return model.base_model.register_forward_pre_hook(edited, with_kwargs=True, prepend=True).remove

    return modify


def behind_first_norm(factor: Callable[[], float]) -> Modify:
    """The output of the first layer's norm, times a factor."""

    def modify(model: PreTrainedModel) -> Callable[[], None]:
        norm = model.base_model.layers[0].input_layernorm
        return norm.register_forward_hook(lambda module, args, out: out * factor()).remove

    return modify


def add_attribute(model: PreTrainedModel) -> Callable[[], None]:
    """An attribute that unpatching does not remove."""
    attention = model.base_model.layers[0].self_attn
    attention.extra = 1
    return lambda: None


def change_class(model: PreTrainedModel) -> Callable[[], None]:
    """A class attribute of transformers, as global monkey patches set it."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    original = LlamaMLP.forward
    LlamaMLP.forward = lambda self, x: original(self, x)

    def undo() -> None:
        LlamaMLP.forward = original

    return undo


def drop_bias_on(*backends: str) -> Callable[[PreTrainedModel], Callable[[], None]]:
    """A bias that some attention backends ignore."""

    def modify(model: PreTrainedModel) -> Callable[[], None]:
        attention = model.base_model.layers[0].self_attn
        engine = type(attention)._by_engine

        def without_bias(call: RotatedCall, *rest: Any) -> Any:
            if attention.config._attn_implementation in backends:
                call = call._replace(shared=replace(call.shared, terms=Terms(visible=Band(None, 10**6))))
            return engine(attention, call, *rest)

        attention.__dict__["_by_engine"] = without_bias
        return lambda: None

    return modify


def detach_queries(model: PreTrainedModel) -> Callable[[], None]:
    """Attention without a gradient of the queries."""
    attention = model.base_model.layers[0].self_attn
    engine = type(attention)._by_engine
    attention.__dict__["_by_engine"] = lambda call, *rest: engine(
        attention, call._replace(queries=tuple(query.detach() for query in call.queries)), *rest
    )
    return lambda: None


def round_values(model: PreTrainedModel) -> Callable[[], None]:
    """Values rounded to eighths, and eight times too large."""
    attention = model.base_model.layers[0].self_attn
    own = type(attention).attend
    attention.__dict__["attend"] = lambda q, k, v, **call: own(attention, q, k, (8 * v).round(), **call)
    return lambda: attention.__dict__.pop("attend", None)


def scale_keys_by_column(model: PreTrainedModel) -> Callable[[], None]:
    """Keys scaled by their column."""

    def scale(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * (1 + 0.05 * torch.arange(out.shape[1]))[None, :, None]

    return model.base_model.layers[0].self_attn.k_proj.register_forward_hook(scale).remove


def read_config_in_forward(model: PreTrainedModel) -> Callable[[], None]:
    """A layer that reads the configuration in every forward pass."""
    built = model.config.max_position_embeddings

    def scaled(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * (model.config.max_position_embeddings / built)

    return model.base_model.layers[0].input_layernorm.register_forward_hook(scaled).remove


def allocate_square(model: PreTrainedModel) -> Callable[[], None]:
    """An unneeded tensor ``[token, token]``."""

    def multiply(module: Any, args: Any, out: Tensor) -> None:
        (out @ out.transpose(-1, -2)).sum()

    return model.base_model.norm.register_forward_hook(multiply).remove


def forward_unpatched(model: PreTrainedModel) -> Callable[[], None]:
    """A patched model whose ``forward`` is that of an unpatched copy."""
    model.forward = unpatch_model(copy.deepcopy(model)).forward
    return lambda: model.__dict__.pop("forward", None)


def change_base(model: PreTrainedModel) -> Callable[[], None]:
    """A RoPE base that changes after the patch was found to be an identity."""
    scheme_of(model).base = 20_000.0
    return lambda: None


def nan_past_trained_length(model: PreTrainedModel) -> Callable[[], None]:
    """NaN past the trained length."""

    def set_to_nan(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * math.nan if out.shape[1] > TRAINED_LENGTH else out

    return model.base_model.norm.register_forward_hook(set_to_nan).remove


def return_self_as_copy(model: PreTrainedModel) -> Callable[[], None]:
    """A deep copy that is the original."""
    model.__deepcopy__ = lambda memo: model
    return lambda: None


def save_without_scheme(model: PreTrainedModel) -> Callable[[], None]:
    """A checkpoint without the scheme."""

    def save(folder: str) -> None:
        unpatched = copy.deepcopy(model)
        del unpatched.save_pretrained
        unpatch_model(unpatched).save_pretrained(folder)

    model.save_pretrained = save
    return lambda: None


def detach_bias(model: PreTrainedModel) -> Callable[[], None]:
    """A learned bias without a gradient."""
    scheme = scheme_of(model)
    bias = scheme.bias
    scheme.bias = lambda ctx: ToeplitzBias(lambda distance: bias(ctx).of_distance(distance).detach())
    return lambda: None


def _one_ahead(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    length = call["input_ids"].shape[1]
    return {**call, "attention_mask": torch.ones(1, 1, length, length, dtype=torch.bool).tril(diagonal=1)}


def _forgotten(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    vars(call.get(str(cache_name(type(module)))) or module).pop(RECORD, None)
    return call


def _without_mask(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "attention_mask": None} if call.get(str(cache_name(type(module)))) is not None else call


def _rounded(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    positions = call.get("position_ids")
    return call if positions is None else {**call, "position_ids": positions.bfloat16().long()}


attend_one_token_ahead = before_forward(_one_ahead)
"""An attention mask that is off by one: every query also attends to the next key."""
forget_cached_positions = before_forward(_forgotten)
"""A KV cache without the positions of its keys, which are then assumed to end right before the new tokens."""
drop_mask_with_cache = before_forward(_without_mask)
"""An attention mask that is ignored if there is a cache."""
round_positions = before_forward(_rounded)
"""``position_ids`` rounded to bfloat16."""
differ_in_graphs = behind_first_norm(lambda: 1.5 if is_traced() else 1.0)
"""A layer that computes something else while it is traced."""
recompute_differently = behind_first_norm(lambda: 1.5 if torch._C._current_graph_task_id() != -1 else 1.0)
"""A layer that computes something else during a backward pass."""
