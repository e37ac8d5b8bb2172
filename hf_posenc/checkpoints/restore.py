"""Build a model as it was saved: a subclass whose constructor patches, for transformers' own loader to fill.

The loader constructs on the meta device, where nothing has a value: the proof of the patch waits until the weights are
there, and parameters the checkpoint lacks are initialised by the scheme, not by transformers' one rule for everything.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_posenc.errors import CheckpointMismatch, PosEncError
from hf_posenc.patches.offloading import change_class
from hf_posenc.patching.patch import patch_model
from hf_posenc.patching.preconditions.weights import check_finite
from hf_posenc.patching.proof import EffectProbe
from hf_posenc.patching.state import Patch, base_model_of, patch_of, scheme_of
from hf_posenc.patching.stored.config_guard import (
    ROTATION_KEY,
    SCHEME_KEY,
    guarded_class,
)
from hf_posenc.patching.stored.scheme_block import SchemeConfig
from hf_posenc.patching.swap import freeze
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.composition import Composition
from hf_posenc.schemes.spec import Plan, SchemeSpec

M = TypeVar("M", bound=nn.Module)
PATCHED_CLASS_MARK = "posenc_restoring"  # marks the subclasses made here
logger = logging.get_logger(__name__)


def load_weights(
    cls: type[PreTrainedModel],
    block: SchemeConfig | None,
    name_or_path: str,
    *args: Any,
    **hf_kwargs: Any,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load ``cls`` with the scheme of ``block``.

    Args:
        cls: a concrete model class.
        block: the checkpoint's; None loads a plain model.
        name_or_path: of the checkpoint.
        *args: of the constructor.
        **hf_kwargs: of ``from_pretrained``.

    Returns:
        The model, of class ``cls``, and transformers' loading report.

    Raises:
        CheckpointMismatch: the block does not fit the model.
        NoEffect: the scheme was restored and does nothing.
    """
    hf_kwargs["output_loading_info"] = True
    if block is None:
        return cls.from_pretrained(name_or_path, *args, **hf_kwargs)  # type: ignore[return-value]
    device_map = hf_kwargs.get("device_map")
    if isinstance(device_map, Mapping):
        device_map = hf_kwargs["device_map"] = dict(device_map)
    try:
        model, info = patched_class(cls, block, device_map).from_pretrained(name_or_path, *args, **hf_kwargs)
    except PosEncError as error:
        raise CheckpointMismatch(
            f"{name_or_path} carries scheme {block}, which does not fit its {cls.__name__}: {error} "
            "Save the patched model again with save_pretrained."
        ) from error
    model.__class__ = cls
    finish_loading(model, info["missing_keys"])
    return model, info


def patched_class(cls: type[PreTrainedModel], block: SchemeConfig, device_map: Any = None) -> type[PreTrainedModel]:
    """A subclass of ``cls`` under the same name, built on the host's own length and patched by its constructor.

    Args:
        cls: a concrete model class.
        block: the checkpoint's.
        device_map: that the model will be loaded by; if it is a dictionary, the constructor completes it.
    """

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        config = copy.deepcopy(config)
        config.max_position_embeddings = block.host_length
        for name in (SCHEME_KEY, ROTATION_KEY):
            if hasattr(config, name):
                delattr(config, name)
        cls.__init__(self, config, *args, **kwargs)
        apply_scheme(block, self)
        if isinstance(device_map, dict):
            map_shared_parameters(device_map, self)

    own = {"__init__": __init__, "config_class": guarded_class(cls.config_class), PATCHED_CLASS_MARK: True}
    return type(cls.__name__, (cls,), {**own, "__module__": cls.__module__, "__qualname__": cls.__qualname__})


def map_shared_parameters(device_map: dict[str, Any], model: nn.Module) -> None:
    """Give the parameters that layers share a place in a device map that was written for the plain model."""
    shared = base_model_of(model)[0]._modules.get("posenc")
    if not device_map or shared is None or next(shared.parameters(), None) is None:
        return
    name = next(name for name, module in model.named_modules() if module is shared)
    if not any(key == "" or f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for key in device_map):
        device_map[name] = next(iter(device_map.values()))


def finish_loading(model: nn.Module, missing: Iterable[str]) -> None:
    """What had to wait for the weights: fresh parameters, frozen tables, the proof.

    Raises:
        NoEffect: the scheme was restored and does nothing.
    """
    initialise_missing(model, set(missing))
    check_finite(model)
    base, adapter = base_model_of(model)
    patch, scheme = patch_of(base), scheme_of(model)
    freeze(patch, base, adapter.frozen(base, scheme))  # the loader made new parameters
    if patch.report is not None and patch.report.proof.verdict == "deferred":
        block = SchemeConfig.of_model(model)
        kinds = block.layout.representatives(scheme.geometry.layers) if block else (0,)
        with unpatched_view(patch):
            probe = EffectProbe(adapter, base, scheme.geometry, kinds)
        patch.report = replace(patch.report, proof=probe.verdict())


def initialise_missing(model: nn.Module, missing: set[str]) -> None:
    """Let schemes initialise the parameters among ``missing``; those that were loaded keep their values.

    Raises:
        CheckpointMismatch: they have been offloaded already.
    """
    for prefix, scheme in model.named_modules():
        if not isinstance(scheme, Scheme) or isinstance(scheme, Composition):
            continue
        lost = [name for name, _ in scheme.named_parameters() if f"{prefix}.{name}" in missing]
        if not lost:
            continue
        if any(weight.is_meta for weight in scheme.parameters()):
            raise CheckpointMismatch(
                f"The checkpoint lacks {', '.join(lost)} of scheme {scheme.extra_repr()!r}, and the device map keeps "
                "them off the devices, where they cannot be drawn. Load it without a device_map, train and save it."
            )
        logger.warning(
            f"The checkpoint lacks {', '.join(lost)} of scheme {scheme.extra_repr()!r}. Train the model before use."
        )
        kept = {name: p.detach().clone() for name, p in scheme.named_parameters() if name not in lost}
        scheme.reset_parameters()
        scheme.load_state_dict(kept, strict=False)


@contextmanager
def unpatched_view(patch: Patch) -> Iterator[None]:
    """The host as it was before the patch: its classes and configurations, with the weights it has now."""
    classes = [(module, type(module)) for module, _ in patch.classes]
    configs = [(module, module.config) for module, _ in patch.configs]
    for module, cls in reversed(patch.classes):
        change_class(module, cls)
    for module, config in patch.configs:
        module.config = config  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, now in classes:
            change_class(module, now)
        for module, config in configs:
            module.config = config


def apply_scheme(block: SchemeConfig, model: M) -> M:
    """Patch a plain model as a block says. Raises as `patch_model` does."""
    return patch_model(
        model,
        _spec(block.layout.default),
        trained_length=block.trained_length,
        target_length=block.target_length,
        layers={key: _spec(chosen) for key, chosen in block.layout.layers.items()},
    )


def _spec(chosen: Plan) -> SchemeSpec:
    return [(cls.record.name, options) for cls, options in chosen.parts]
