"""Split the terms of a scheme into a factor of whole queries, and the terms by which attention is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from hf_posenc.core.terms import Terms


@dataclass(frozen=True)
class SplitTerms:
    """Terms of one attention call, and a factor that is multiplied into the queries first.

    Attributes:
        terms: terms without that factor.
        query_factor: factor of whole queries, ``[batch or 1, heads or 1, query, 1]``; None without factors.
        key_copies: number of the key copy that each region reads, from 0.
        scales_only: whether the host's own attention function supports the terms.
    """

    terms: Terms
    query_factor: Tensor | None
    key_copies: tuple[int, ...]
    scales_only: bool

    @classmethod
    def of(cls, terms: Terms) -> SplitTerms:
        """Split terms. A factor of whole logits (``row_scale``) scales the query if no bias is added to its scores."""
        factor = None if terms.query_scale is None else terms.query_scale[:, None]
        if terms.row_scale is not None and len(terms.bias) == 0:
            factor = terms.row_scale if factor is None else factor * terms.row_scale
            terms = replace(terms, row_scale=None)
        copies: dict[object, int] = {}
        numbers = [copies.setdefault(region.copy, len(copies)) for region in terms.regions]
        return cls(terms, None if factor is None else factor[..., None], tuple(numbers), terms.scales_only)

    def scaled(self, queries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Queries of every region times the factor."""
        factor = self.query_factor
        return queries if factor is None else tuple((query * factor).to(query.dtype) for query in queries)

    def keys_by_region(self, copies: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The key copy of each region; without rotations, all regions share one copy."""
        return copies * len(self.key_copies) if len(copies) == 1 else tuple(map(copies.__getitem__, self.key_copies))
