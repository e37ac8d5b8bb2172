"""Attention sinks (StreamingLLM): attend to the first tokens and the most recent ones, and drop all others.

    query i sees  j < S                     S = sinks
                  i − W < j ≤ i             W = recent
    positions are counted inside the cache: 0 … S + W − 1, the query at its end

Models put surplus attention on the first tokens. A window that drops these tokens breaks the model; one that keeps them
can stream without limit. Recent keys keep their true distance; sink j has distance S + W − 1 − j from every later
query. Keys are rotated once, at their own positions; only queries get another angle, for the sinks. A dynamic cache
(the default of ``generate``) holds S + W − 1 keys. The context that the model can use is not extended.

The query counts as recent. Code that evicts after a step instead of before it, like the paper's perplexity script, sees
one key more: that is ``recent`` + 1 here. The first tokens are those at positions 0 … S − 1.

The learned form adds one logit per head to the softmax, a key without value, which needs training.

Xiao, Tian, Chen, Han, Lewis 2023, "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453,
section 3; github.com/mit-han-lab/streaming-llm. Learned logit: OpenAI 2025, gpt-oss, arXiv:2508.10925.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.regions import Band, Region
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import NotNegativeInt, PositiveInt
from hf_posenc.schemes.registry import register_scheme

STREAMING = 4  # number of sinks in the paper


@register_scheme("sinks", aliases=("streaming", "attention_sinks"), zero_shot=True, paper="2309.17453")
class Sinks(Scheme):
    """The first ``sinks`` tokens (4) and the last ``recent`` (default: the rest of the trained length), and no others.

    ``sinks=0`` equals the scheme `window`. ``learned_logit`` adds a trained logit per head and layer.
    """

    formula = r"""
    \text{query $i$ sees } & j < S \quad \text{or} \quad i - W < j \le i \\
    S &= \mathtt{sinks}, \quad W = \mathtt{recent} \\
    \text{positions} &= 0, \dots, S + W - 1 \text{ inside the cache, the query at its end}
    """

    replaces_host = False
    needs_relative = True
    chooses_keys = True
    needs_causal = True

    def __init__(
        self,
        geometry: Geometry,
        *,
        sinks: NotNegativeInt = STREAMING,
        recent: PositiveInt | None = None,
        learned_logit: bool = False,
    ) -> None:
        super().__init__(geometry)
        self.sinks = sinks
        self.recent = max(1, geometry.trained_length - sinks) if recent is None else recent
        self.logits = nn.Parameter(torch.zeros(geometry.heads)) if learned_logit else None
        self.shared = not learned_logit

    def reset_parameters(self) -> None:
        """Reset the learned logits to 0."""
        if self.logits is not None:
            nn.init.zeros_(self.logits)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        """Recent keys at their true distance; the sinks at positions counted inside the cache."""
        recent = Region(Band(None, self.recent))
        return recent, Region(Band(self.recent, None, keys_until=self.sinks), self.at_cache_end)

    def at_cache_end(self, positions: Tensor) -> Tensor:
        """Position of a query in the cache."""
        return positions.clamp(max=self.sinks + self.recent - 1)

    def sink(self) -> Tensor | None:
        return self.logits

    @property
    def kept_keys(self) -> tuple[int, int]:
        """The sinks, and the recent keys of the next token without its own."""
        return self.sinks, self.recent - 1

    @property
    def unchanged_below(self) -> int:
        """The length up to which no key is dropped."""
        return self.sinks + self.recent if self.logits is None else 0
