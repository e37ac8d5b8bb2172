"""Checks of the life cycle: patch and unpatch leave no trace, copies are independent, nobody else is touched."""

from __future__ import annotations

import copy
import importlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.checks.case import Case, perturb_parameters
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import (
    config_of,
    forward,
    max_deviation,
    random_tokens,
)
from hf_posenc.checks.registry import register_check
from hf_posenc.checks.tiny_models import TINY_MODELS, tiny_model
from hf_posenc.checks.torch_settings import settings
from hf_posenc.errors import AlreadyPatched
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import base_model_of, is_patched

SHARED_MODULES = (
    "torch.nn.functional",
    "torch.nn.modules.module",
    "transformers.cache_utils",
    "transformers.generation.utils",
    "transformers.integrations.sdpa_attention",
    "transformers.masking_utils",
    "transformers.modeling_rope_utils",
    "transformers.modeling_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)


@register_check("unpatch")
def unpatch_leaves_no_trace(pair: Case) -> Deviation:
    """After patch, use and unpatch everything is bit-equal: logits, weights, attributes, hooks, classes, configuration.

    The value is the number of differences.
    """
    with pair.host() as model:
        tokens = random_tokens(model, pair.host_length(pair.trained + 1))
        before = traces(model, tokens)
        pair.apply(model)
        forward(model, random_tokens(model, pair.length(pair.trained + 1, model)))
        unpatch_model(model)
        return pair.gap("unpatch", *differences(before, traces(model, tokens)))


@register_check("twice")
def second_patch_is_refused(pair: Case) -> Deviation:
    """A patched model refuses another patch, and stays as it is. The value is the number of differences."""
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 1, model))
        before = traces(model, tokens)
        try:
            pair.apply(model)
        except AlreadyPatched:
            return pair.gap("twice", *differences(before, traces(model, tokens)))
    return pair.gap("twice", 1.0, "the second patch, which was accepted")


@register_check("deepcopy", copies=True)
def copies_are_equal_and_apart(pair: Case) -> Deviation:
    """A deep copy reads bit-equally, learns on its own, and leaves the original as it was when it is unpatched.

    The value is the deviation.
    """
    with pair.patched() as model:
        tokens = random_tokens(model, pair.length(pair.trained + 1, model))
        before = forward(model, tokens)
        twin = copy.deepcopy(model)
        found = [(*max_deviation(forward(twin, tokens), before), "of the copy")]
        perturb_parameters(twin)
        stirred = forward(twin, tokens)
        found.append((*max_deviation(forward(model, tokens), before), "of the original, whose copy was trained"))
        unpatch_model(twin)
        found.append((*max_deviation(forward(model, tokens), before), "of the original, whose copy was unpatched"))
        found.append((float(is_patched(twin) or not is_patched(model)), "no token", "in what is patched"))
        perturb_parameters(model)
        found.append((*max_deviation(stirred, forward(model, tokens)), "of the trained copy"))
    value, where, whose = max(found)
    return pair.gap("deepcopy", value, f"{where} {whose}")


@register_check("isolation")
def nobody_else_is_touched(pair: Case) -> Deviation:
    """While one model is patched, another reads bit-equally and no module or class of torch or transformers changes.

    The value is the number of differences.
    """
    base, adapter = base_model_of(pair.fresh())
    name = pair.model if isinstance(pair.model, str) else adapter.name
    other = tiny_model(name) if name in TINY_MODELS else type(base)(copy.deepcopy(base.config)).eval()
    shared = dict.fromkeys((*SHARED_MODULES, type(base).__module__))
    tokens = random_tokens(other, pair.host_length(9))
    before = {**surroundings(shared), "another model": forward(other, tokens)}
    with pair.patched() as model:
        forward(model, random_tokens(model, pair.length(9, model)))
        during = {**surroundings(shared), "another model": forward(other, tokens)}
    return pair.gap("isolation", *differences(before, during))


def traces(model: nn.Module, tokens: Tensor) -> dict[str, Any]:
    """Everything a patch could leave behind, by name."""
    found: dict[str, Any] = {"logits": forward(model, tokens)}
    for name, module in model.named_modules():
        found[f"class of {name}"] = type(module)
        found[f"attributes of {name}"] = sorted(module.__dict__)
        found[f"children of {name}"] = sorted(module._modules)
        found[f"hooks of {name}"] = [list(map(id, hooks.values())) for hooks in _hooks(module)]
    for name, weight in model.named_parameters():
        found[f"training of {name}"] = weight.requires_grad
    for name, value in model.state_dict().items():
        found[f"bytes of {name}"] = (tuple(value.shape), value.dtype, _checksum(value))
    config = config_of(model)
    found["configuration"] = (id(config), config.to_json_string(use_diff=False))
    return found


def surroundings(shared: Iterable[str] = SHARED_MODULES) -> dict[str, Any]:
    """What all models share: torch's settings, and the identity of every name in the modules and classes."""
    found: dict[str, Any] = {f"torch's {name}": value for name, value in settings().items()}
    for module in map(importlib.import_module, shared):
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            found[f"{module.__name__}.{name}"] = id(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                found |= {
                    f"{module.__name__}.{name}.{own}": id(what) for own, what in vars(value).items() if _kept(own)
                }
            elif hasattr(value, "keys") and not isinstance(value, type):
                found[f"keys of {module.__name__}.{name}"] = sorted(map(str, value.keys()))
    return found


def _kept(attribute: str) -> bool:
    return attribute not in ("__dict__", "__weakref__", "__doc__", "__annotations__", "_abc_impl")


def _hooks(module: nn.Module) -> list[Mapping[int, Callable]]:
    named = sorted(module.__dict__.items())
    return [hooks for name, hooks in named if name.endswith("_hooks") and isinstance(hooks, Mapping) and hooks]


def _checksum(value: Tensor) -> int:
    raw = value.detach().cpu().contiguous().view(-1)
    return zlib.crc32(raw.view(torch.uint8).numpy().data) if raw.numel() else 0


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, str]:
    """Number of names under which two such records differ, and the first of them."""
    names = [name for name in before.keys() | after.keys() if not _same(before.get(name), after.get(name))]
    return float(len(names)), ", ".join(sorted(names)[:5]) or "nothing"


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one, two)
    return type(one) is type(two) and one == two
