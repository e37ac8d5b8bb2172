"""Ms-PoE: each head divides positions by a ratio of its own, so that heads together read several scales of distance.

    Δ' = (i − j) / r_h        r_h = r_min + (r_max − r_min) n / (H − 1) for the n-th head of ``order``, n = 0 … H − 1

Models read the middle of a long text worse than its ends. Shorter distances help heads that attend to few tokens,
wherever these are. Heads that use positions well keep them nearly unchanged, so they come first in ``order``. The
published order is by *position awareness*, greatest first: the share of keys with more than α times the mean weight,
for the last query of a prompt. `order_of` computes it from attention weights. The published method computes it anew for
every prompt, so that a token's output depends on later tokens. Here it is an option, for all layers or for each; by
default heads keep their own order.

Query heads that share a key head get separate keys: keys and values are repeated, and a KV cache is H / kv_heads times
as large. The released code rotates a shared key by the ratio of its first query head, so products no longer depend on
the distance. It also gives head h the ratio number ``order[h]``, which is the inverse permutation, and divides by H
instead of H − 1. It leaves the first two layers unchanged (``layers=`` of `patch_model` does the same). Its α is 4.

Zhang, Chen, Liu, Yao, Ruwase, Chen, Wu, Wang 2024, "Found in the Middle: How Language Models Use Long Contexts Better
via Plug-and-Play Positional Encoding", arXiv:2403.04797, section 3; github.com/VITA-Group/Ms-PoE.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Region
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import AtLeastOne, NotNegativeInt
from hf_posenc.schemes.registry import register_scheme

Order = Sequence[NotNegativeInt]
OUTLIER = 4.0


@register_scheme("ms_poe", aliases=("multi_scale",), zero_shot=True, cache="heads", paper="2403.04797")
class MsPoE(Scheme):
    """Positions divided by a ratio for each head, from ``r_min`` (1.2) to ``r_max`` (1.8) along ``order``.

    ``order`` lists all heads, starting with the head that uses positions best, or has such a list for each layer. The
    default is 0, 1, 2 … A KV cache holds keys and values for every query head.
    """

    formula = r"""
    \Delta' &= (i - j) / r_h \\
    r_h &= r_\mathrm{min} + (r_\mathrm{max} - r_\mathrm{min}) \, n / (H - 1) \quad \text{for } h = \mathtt{order}_n
    """

    replaces_host = False
    needs_rotation = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        r_min: AtLeastOne = 1.2,
        r_max: AtLeastOne = 1.8,
        order: Order | Sequence[Order] | None = None,
    ) -> None:
        super().__init__(geometry)
        if r_min > r_max:
            raise OptionOutOfRange(f"r_min ≤ r_max must hold, got {r_min:g} and {r_max:g}. The paper has 1.2 and 1.8.")
        heads = geometry.heads
        step = (r_max - r_min) / max(heads - 1, 1)
        orders: Any = [range(heads)] if order is None else order
        if all(isinstance(item, int) for item in orders):
            orders = [orders]
        if any(sorted(item) != list(range(heads)) for item in orders) or len(orders) not in (1, geometry.layers):
            raise OptionOutOfRange(
                f"order must have each of the head numbers 0 … {heads - 1} once, or a list with them for each of the "
                f"{geometry.layers} layers, got {order}. `order_of` makes one from attention weights."
            )
        self.factors = tuple(tuple(1 / (r_min + step * item.index(head)) for head in range(heads)) for item in orders)
        self.shared = len(orders) == 1

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """One region, in which each head divides positions by its own ratio."""
        layer = 0 if self.shared else ctx.layer or 0
        return (Region(by_head=self.factors[layer]),)


def order_of(weights: Iterable[Tensor], outlier: float = OUTLIER) -> list[list[int]]:
    """The heads of each layer in the published order, from ``model(ids, output_attentions=True).attentions``.

    Args:
        weights: weights of each layer of the unpatched model, ``[batch, heads, query, key]``, without padding.
        outlier: α; a key counts if its weight exceeds α times the mean weight.
    """
    last = (layer[:, :, -1].float() for layer in weights)
    awareness = ((row > outlier * row.mean(-1, keepdim=True)).float().mean((0, -1)) for row in last)
    return [score.argsort(descending=True, stable=True).tolist() for score in awareness]
