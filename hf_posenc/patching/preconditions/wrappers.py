"""Wrapper check: refuse models that are wrapped, sharded or several in one, where a patch would not work.

A compiled model is compiled anew when its layers change class. `DistributedDataParallel` keeps a list of parameters and
would never reduce the gradients of new ones. Layers with sharded weights cannot be run alone, so that no effect probe
is possible.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_posenc.errors import UnsupportedModel

SHARDING_CLASSES = ("FullyShardedDataParallel", "FSDPModule")
SHARDED_TENSOR = "DTensor"  # a weight of which each device has a part


def check_single_model(model: nn.Module, base: nn.Module, kinds: Iterable[type[nn.Module]]) -> None:
    """Refuse a module that holds several models, as it is unknown which one is meant.

    Raises:
        UnsupportedModel: it holds more than one.
    """
    found = [module for module in model.modules() if isinstance(module, tuple(kinds))]
    others = [module for module in found if module is not base and not is_submodule(base, module)]
    if others:
        raise UnsupportedModel(
            f"This {type(model).__name__} holds {1 + len(others)} models, a {type(base).__name__} and a "
            f"{type(others[0]).__name__}. Patch each of them separately."
        )


def is_submodule(base: nn.Module, module: nn.Module) -> bool:
    """Whether a module is a part of ``base``."""
    return any(one is module for one in base.modules())


def check_unsharded(model: nn.Module) -> None:
    """Refuse a model whose weights are sharded.

    Raises:
        UnsupportedModel: FSDP or tensor parallelism has sharded them.
    """
    sharding = {cls.__name__ for module in model.modules() for cls in type(module).__mro__} & set(SHARDING_CLASSES)
    apart = any(type(weight).__name__ == SHARDED_TENSOR for weight in model.parameters())
    if sharding or apart:
        raise UnsupportedModel(
            f"The weights of this {type(model).__name__} are spread over devices "
            f"({sorted(sharding)[0] if sharding else SHARDED_TENSOR}). Patch the model first, and shard it afterwards."
        )


def check_reducer(model: nn.Module, fresh: Iterable[nn.Parameter], frozen: Iterable[nn.Parameter]) -> None:
    """Refuse to add or freeze parameters once a gradient reducer has listed them.

    Raises:
        UnsupportedModel: the model is in `DistributedDataParallel`, and the scheme adds or freezes parameters.
    """
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()) and (
        any(True for _ in fresh) or any(weight.requires_grad for weight in frozen)
    ):
        raise UnsupportedModel(
            "This model is in DistributedDataParallel, which would not learn of parameters that the scheme adds or "
            "freezes. Patch the model first, and wrap it afterwards."
        )
