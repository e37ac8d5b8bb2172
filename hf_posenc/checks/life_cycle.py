"""Checks of the life cycle: unpatching restores the model, copies are independent, other models are unchanged."""

from __future__ import annotations

import copy
import importlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.checks.case import Case, current_settings, perturb_parameters
from hf_posenc.checks.forward import config_of, forward, max_deviation, random_tokens
from hf_posenc.checks.registry import Measured, located, register_check, worst
from hf_posenc.checks.tiny_models import TINY_MODELS, tiny_model
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
CHANGING_ATTRIBUTES = ("__dict__", "__weakref__", "__doc__", "__annotations__", "_abc_impl")  # Python makes them anew


@register_check("unpatch", trained_length=None)
def unpatch_restores_everything(case: Case) -> Measured:
    """After patch, forward and unpatch the model is bit-equal: outputs, weights, attributes, hooks, classes, config.

    The value is the number of differences.
    """
    with case.unpatched() as model:
        tokens = random_tokens(model, case.clip_length_unpatched(case.trained_length + 1))
        before = snapshot(model, tokens)
        case.apply(model)
        forward(model, random_tokens(model, case.clip_length(case.trained_length + 1, model)))
        unpatch_model(model)
        return differences(before, snapshot(model, tokens))


@register_check("second_patch", trained_length=None)
def second_patch_is_refused(case: Case) -> Measured:
    """A patched model refuses another patch and stays unchanged. The value is the number of differences."""
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 1, model))
        before = snapshot(model, tokens)
        try:
            case.apply(model)
        except AlreadyPatched:
            return differences(before, snapshot(model, tokens))
    return 1.0, "the second patch was accepted"


@register_check("deepcopy", needs_copy=True)
def copies_are_equal_and_independent(case: Case) -> Measured:
    """A deep copy is bit-equal; changing its parameters or unpatching it does not change the original.

    The value is the largest deviation.
    """
    with case.patched() as model:
        tokens = random_tokens(model, case.clip_length(case.trained_length + 1, model))
        before = forward(model, tokens)
        copied = copy.deepcopy(model)
        deviations = [located(max_deviation(forward(copied, tokens), before), "of the copy")]
        perturb_parameters(copied)
        trained = forward(copied, tokens)
        deviation = max_deviation(forward(model, tokens), before)
        deviations.append(located(deviation, "of the original after training the copy"))
        unpatch_model(copied)
        deviation = max_deviation(forward(model, tokens), before)
        deviations.append(located(deviation, "of the original after unpatching the copy"))
        deviations.append((float(is_patched(copied) or not is_patched(model)), "no token, is_patched is wrong"))
        perturb_parameters(model)
        deviations.append(located(max_deviation(trained, forward(model, tokens)), "of the trained copy"))
    return worst(deviations)


@register_check("isolation")
def other_models_are_unchanged(case: Case) -> Measured:
    """While one model is patched, another is bit-equal, and no module or class of torch or transformers changes.

    The value is the number of differences.
    """
    base, adapter = base_model_of(case.fresh())
    name = case.model if isinstance(case.model, str) else adapter.name
    other = tiny_model(name) if name in TINY_MODELS else type(base)(copy.deepcopy(base.config)).eval()
    shared = dict.fromkeys((*SHARED_MODULES, type(base).__module__))
    tokens = random_tokens(other, case.clip_length_unpatched(9))
    before = {**global_snapshot(shared), "another model": forward(other, tokens)}
    with case.patched() as model:
        forward(model, random_tokens(model, case.clip_length(9, model)))
        during = {**global_snapshot(shared), "another model": forward(other, tokens)}
    return differences(before, during)


def snapshot(model: nn.Module, tokens: Tensor) -> dict[str, Any]:
    """All properties of a model that a patch could change, by name."""
    entries: dict[str, Any] = {"logits": forward(model, tokens)}
    for name, module in model.named_modules():
        entries[f"class of {name}"] = type(module)
        entries[f"attributes of {name}"] = sorted(module.__dict__)
        entries[f"children of {name}"] = sorted(module._modules)
        entries[f"hooks of {name}"] = [list(map(id, hooks.values())) for hooks in _hooks(module)]
    for name, weight in model.named_parameters():
        entries[f"training of {name}"] = weight.requires_grad
    for name, value in model.state_dict().items():
        entries[f"bytes of {name}"] = (tuple(value.shape), value.dtype, _checksum(value))
    config = config_of(model)
    entries["configuration"] = (id(config), config.to_json_string(use_diff=False))
    return entries


def global_snapshot(shared: Iterable[str] = SHARED_MODULES) -> dict[str, Any]:
    """State that all models share: torch's settings, and the identity of every name in shared modules and classes."""
    entries: dict[str, Any] = {f"torch's {name}": value for name, value in current_settings().items()}
    for module in map(importlib.import_module, shared):
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            entries[f"{module.__name__}.{name}"] = id(value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                members = {member: id(own) for member, own in vars(value).items() if member not in CHANGING_ATTRIBUTES}
                entries |= {f"{module.__name__}.{name}.{member}": identity for member, identity in members.items()}
            elif hasattr(value, "keys") and not isinstance(value, type):
                entries[f"keys of {module.__name__}.{name}"] = sorted(map(str, value.keys()))
    return entries


def _hooks(module: nn.Module) -> list[Mapping[int, Callable]]:
    named = sorted(module.__dict__.items())
    return [hooks for name, hooks in named if name.endswith("_hooks") and isinstance(hooks, Mapping) and hooks]


def _checksum(value: Tensor) -> int:
    raw = value.detach().cpu().contiguous().view(-1)
    return zlib.crc32(raw.view(torch.uint8).numpy().data) if raw.numel() else 0


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, str]:
    """Number of differing entries of two snapshots, and the names of the first five."""
    names = [name for name in before.keys() | after.keys() if not same(before.get(name), after.get(name))]
    return float(len(names)), ", ".join(sorted(names)[:5]) or "nothing"


def same(one: Any, two: Any) -> bool:
    """Whether two values have one type and are equal."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return torch.equal(one, two)
    return type(one) is type(two) and one == two
