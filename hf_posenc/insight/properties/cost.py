"""What a scheme costs, counted: parameters, arithmetic and memory that the same layer without positions does not have.

Operations are counted as they pass through torch's dispatcher: matrix products by `torch.utils.flop_counter`'s own
formulas, everything elementwise by the numbers it writes. Counts, unlike times, are the same on every machine. Counted
is the definition, which forms all scores; the fused routes of `hf_posenc.attention` do less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from hf_posenc.insight.properties.cell import PropertyValue
from hf_posenc.insight.properties.layer import Layer, gaussian, outputs
from hf_posenc.insight.properties.registry import register_property
from hf_posenc.insight.properties.target import LAYERS, PropertyTarget, bench
from hf_posenc.schemes.build import build
from hf_posenc.schemes.spec import plan

ATEN = torch.ops.aten
OPERATIONS = {ATEN.clone: 0, ATEN.copy_: 0, ATEN._to_copy: 0, ATEN.addcmul: 2, ATEN.addcmul_: 2}
"""Of an elementwise kernel for each number it writes, where that is not one: moving a number is none."""


class Counter(TorchDispatchMode):
    """Counts the arithmetic of everything that runs inside it, and the numbers of the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.largest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        keywords = kwargs or {}
        out = func(*args, **keywords)
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if func.overloadpacket in flop_registry:
            self.operations += flop_registry[func.overloadpacket](*args, **keywords, out_val=out)
        elif torch.Tag.pointwise in func.tags:
            each = OPERATIONS.get(func.overloadpacket, 1)
            self.operations += each * sum(x.numel() for x in made if x.is_floating_point())
        self.largest = max([self.largest, *(x.numel() for x in made)])
        return out


@register_property("cost", "How much more arithmetic does a layer have?", "{:+.1%} operations")
def cost(target: PropertyTarget) -> PropertyValue:
    """Operations of one layer on a text, against the same layer without positions; parameters; cached channels."""
    layer, count = target.layer(dtype=torch.float32), target.length
    bare = Layer(build(plan("none"), bench(target.model, factor=1), target.model).eval(), torch.float32)
    own, none = counted(layer, count), counted(bare, count)
    parameters = sum(p.numel() for p in layer.scheme.parameters()) * (1 if layer.scheme.shared else LAYERS)
    channels = layer.cached_channels() - bare.cached_channels()
    share, largest = (own.operations - none.operations) / none.operations, own.largest / none.largest
    says = (
        f"more operations than a layer without positions on {count} tokens, as a share; parameters in "
        f"{LAYERS} layers: {parameters}; more channels cached for a key: {channels}; largest tensor: {largest:.2g}×"
    )
    more = {"parameters": float(parameters), "operations": float(own.operations - none.operations),
            "cached_channels": float(channels), "largest_tensor": largest}  # fmt: skip
    return PropertyValue(None, share, says, f"{parameters} parameters" if parameters else "", more)


def counted(layer: Layer, count: int) -> Counter:
    """The operations of one attention call on ``count`` tokens."""
    x, positions = gaussian(1, count, layer.geometry.width, seed=3).float(), torch.arange(count)[None]
    with torch.no_grad(), Counter() as counter:
        outputs(layer.call(x, x, positions))
    return counter
