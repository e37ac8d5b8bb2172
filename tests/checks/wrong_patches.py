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
from transformers.models.llama.modeling_llama import LlamaMLP

from hf_posenc.cache.key_positions import POSITIONS_ATTRIBUTE
from hf_posenc.checks import Case
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.core.regions import Band
from hf_posenc.core.terms import Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.forward.attention import RotatedCall
from hf_posenc.forward.host_calls import cache_name
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import scheme_of

Modify = Callable[[PreTrainedModel], Callable[[], object] | None]


class NoPatch(Case):
    """A patch that reports success and does nothing."""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        return model

    def clip_length(self, length: int, model: Any) -> int:
        return length


class IgnoresPeftModels(Case):
    """A patch that does nothing to a model wrapped by PEFT."""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        return model if hasattr(model, "peft_config") else super().apply(model)


class Modified(Case):
    """A correct case whose patched model, or its environment, is then modified.

    Args:
        modify: modifies the patched model, and may return a function that undoes it.
        case: the correct case.
    """

    def __init__(self, modify: Modify, case: Case) -> None:
        super().__init__(case.model, case.scheme, **case.options)
        self.modify, self.undo = modify, lambda: None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        model = super().apply(model)
        self.undo = self.modify(model) or (lambda: None)
        return model

    @contextmanager
    def unpatched(self) -> Iterator[PreTrainedModel]:
        try:
            with super().unpatched() as model:
                yield model
        finally:
            self.undo()


def before_forward(edit: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> Modify:
    """The keywords of every forward pass of the base model, edited."""

    def modify(model: PreTrainedModel) -> Callable[[], None]:
        def edited(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            return args, edit(module, kwargs)

        return model.base_model.register_forward_pre_hook(edited, with_kwargs=True, prepend=True).remove

    return modify


def behind(name: str, change: Callable[[PreTrainedModel, Tensor], Tensor | None]) -> Modify:
    """The output of a module of the base model, changed."""

    def modify(model: PreTrainedModel) -> Callable[[], None]:
        hook = lambda module, args, out: change(model, out)  # noqa: E731
        return model.base_model.get_submodule(name).register_forward_hook(hook).remove

    return modify


def in_first_attention(name: str, wrong: Callable[..., Any]) -> Modify:
    """A method of the first attention, called as ``wrong(attention, method, …)``."""

    def modify(model: PreTrainedModel) -> Callable[[], object]:
        attention = model.base_model.layers[0].self_attn
        method = getattr(attention, name)
        vars(attention)[name] = lambda *args, **call: wrong(attention, method, *args, **call)
        return lambda: vars(attention).pop(name, None)

    return modify


def drop_bias_on(*backends: str) -> Modify:
    """A bias that some attention backends ignore."""

    def without_bias(attention: Any, engine: Any, call: RotatedCall, *rest: Any) -> Any:
        if attention.config._attn_implementation in backends:
            call = call._replace(split=replace(call.split, terms=Terms(visible=Band(None, 10**6))))
        return engine(call, *rest)

    return in_first_attention("_attend_by_engine", without_bias)


def add_attribute(model: PreTrainedModel) -> None:
    """An attribute that unpatching does not remove."""
    model.base_model.layers[0].self_attn.extra = 1


def change_class(model: PreTrainedModel) -> Callable[[], None]:
    """A class attribute of transformers, as global monkey patches set it."""
    original = LlamaMLP.forward
    LlamaMLP.forward = lambda self, x: original(self, x)
    return lambda: setattr(LlamaMLP, "forward", original)


def forward_unpatched(model: PreTrainedModel) -> Callable[[], object]:
    """A patched model whose ``forward`` is that of an unpatched copy."""
    model.forward = unpatch_model(copy.deepcopy(model)).forward
    return lambda: vars(model).pop("forward", None)


def change_base(model: PreTrainedModel) -> None:
    """A RoPE base that changes after the patch was found to be an identity."""
    scheme_of(model).base = 20_000.0


def return_self_as_copy(model: PreTrainedModel) -> None:
    """A deep copy that is the original."""
    model.__deepcopy__ = lambda memo: model


def save_without_scheme(model: PreTrainedModel) -> None:
    """A checkpoint without the scheme."""

    def save(folder: str) -> None:
        unpatched = copy.deepcopy(model)
        del unpatched.save_pretrained
        unpatch_model(unpatched).save_pretrained(folder)

    model.save_pretrained = save


def detach_bias(model: PreTrainedModel) -> None:
    """A learned bias without a gradient."""
    scheme = scheme_of(model)
    bias = scheme.bias
    scheme.bias = lambda ctx: ToeplitzBias(lambda distance: bias(ctx).of_distance(distance).detach())


def _one_ahead(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    length = call["input_ids"].shape[1]
    return {**call, "attention_mask": torch.ones(1, 1, length, length, dtype=torch.bool).tril(diagonal=1)}


def _forgotten(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    vars(call.get(str(cache_name(type(module)))) or module).pop(POSITIONS_ATTRIBUTE, None)
    return call


def _without_mask(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "attention_mask": None} if call.get(str(cache_name(type(module)))) is not None else call


def _rounded(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    positions = call.get("position_ids")
    return call if positions is None else {**call, "position_ids": positions.bfloat16().long()}


NORM = "layers.0.input_layernorm"
# Every query also attends to the next key; cached keys are assumed to end right before the new tokens.
attend_one_token_ahead, forget_cached_positions = before_forward(_one_ahead), before_forward(_forgotten)
# An attention mask is ignored if there is a cache; positions are those that bfloat16 has.
drop_mask_with_cache, round_positions = before_forward(_without_mask), before_forward(_rounded)
# A layer computes something else while it is traced, or during a backward pass.
differ_in_graphs = behind(NORM, lambda model, out: out * (1.5 if is_traced() else 1.0))
recompute_differently = behind(NORM, lambda model, out: out * (1.5 if torch._C._current_graph_task_id() != -1 else 1.0))
# A layer reads the configuration in every forward pass.
read_config_in_forward = behind(NORM, lambda model, out: out * (model.config.max_position_embeddings / 128))
scale_keys_by_column = behind(
    "layers.0.self_attn.k_proj", lambda model, out: out * (1 + 0.05 * torch.arange(out.shape[1]))[None, :, None]
)
nan_past_trained_length = behind("norm", lambda model, out: out * math.nan if out.shape[1] > TRAINED_LENGTH else out)
# A tensor ``[token, token]`` that nothing needs.
allocate_square = behind("norm", lambda model, out: (out @ out.transpose(-1, -2)).sum() * 0 + out)
detach_queries = in_first_attention(
    "_attend_by_engine",
    lambda attention, engine, call, *rest: engine(
        call._replace(queries=tuple(query.detach() for query in call.queries)), *rest
    ),
)
# Values rounded to eighths, and eight times too large.
round_values = in_first_attention("attend", lambda attention, own, q, k, v, **call: own(q, k, (8 * v).round(), **call))
