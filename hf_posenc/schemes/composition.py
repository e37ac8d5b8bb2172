"""Compose several schemes into one: terms are merged, and exclusive hooks may come from one scheme only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

from torch import Tensor, nn

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Rotation
from hf_posenc.core.regions import Region
from hf_posenc.core.terms import RowRotation, Terms
from hf_posenc.errors import CannotCombine, FractionalPosition
from hf_posenc.schemes.base import POSITION_HOOKS, Scheme, overrides

SINGLE = (
    *("rotation", "row_rotation", "retune", "embed", "extra_key_channels"),
    *("reposition", "prepare", "sink", "read_table"),
)
"""Hooks that at most one part may override."""


class Composition(Scheme):
    """Several schemes at once: ``"yarn+logn"``. Biases add, scales multiply; exclusive hooks may come from one.

    Attributes:
        name: name as the user wrote it, without the model's own positions, which may be a part as well.
    """

    def __init__(self, parts: Sequence[Scheme], name: str) -> None:
        super().__init__(parts[0].geometry)
        self.name = name
        self.parts = nn.ModuleList(parts)
        self.replaces_host = any(part.replaces_host for part in parts) and not self.geometry.on_host
        self.shared = all(part.shared for part in parts)
        for hook in SINGLE:
            self._at_most_one(f"bring `{hook}`", [p for p in parts if overrides(p, hook)])
        rotating = [p for p in parts if overrides(p, "rotation") or overrides(p, "row_rotation")]
        remapping = [p for p in parts if overrides(p, "regions")]
        self._at_most_one("rotate queries and keys", rotating)
        self._at_most_one("remap positions", remapping)
        self._at_most_one("choose which keys are seen", [p for p in parts if p.chooses_keys])
        by_row = [p for p in parts if overrides(p, "row_rotation")]
        self._at_most_one("decide where keys are rotated", by_row + remapping)
        by_axes = [p for p in parts if overrides(p, "coordinates")]  # their distances are not on one axis
        self._at_most_one("say where tokens stand", by_axes + remapping if remapping else [])
        self._check_fractions(parts)

    @property
    def schemes(self) -> list[Scheme]:
        """The parts."""
        return [part for part in self.parts if isinstance(part, Scheme)]

    def _memo(self) -> dict[Hashable, Any]:
        """An empty memo. Every part keeps a reference, to clear it when one of its own attributes is assigned."""
        memo = super()._memo()
        for part in self.schemes:
            part.__dict__.setdefault("memos_above", []).append(memo)
        return memo

    def reset_parameters(self) -> None:
        for part in self.schemes:
            part.reset_parameters()

    def embed(self, positions: Tensor) -> Tensor | None:
        return self._part("embed").embed(positions)

    def read_table(self, table: Tensor, positions: Tensor) -> Tensor:
        return self._part("read_table").read_table(table, positions)

    def reposition(self, positions: Tensor, *, training: bool) -> Tensor:
        return self._part("reposition").reposition(positions, training=training)

    def rotation(self) -> Rotation | None:
        rotation = self._part("rotation").rotation()
        return None if rotation is None else self._part("retune").retune(rotation)

    def coordinates(self, positions: Tensor, given: Tensor | None) -> Tensor:
        return self._part("coordinates").coordinates(positions, given)

    def row_rotation(self) -> RowRotation | None:
        rows, tuning = self._part("row_rotation").row_rotation(), self._part("retune")
        if rows is None or not overrides(tuning, "retune"):
            return rows
        of_length = rows.rotation_of
        return replace(rows, rotation_of=lambda length: tuning.retune(of_length(length)), frequencies_of=None)

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        regions, tuning = self._part("regions").regions(ctx), self._part("retune")
        if not overrides(tuning, "retune"):
            return regions
        return tuple(replace(r, rotation=r.rotation and tuning.retune(r.rotation)) for r in regions)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self._part("prepare").prepare(query, key)

    def extra_key_channels(self, ctx: PositionContext) -> Tensor | None:
        return self._part("extra_key_channels").extra_key_channels(ctx)

    def logit_scale(self) -> float:
        return prod(part.logit_scale() for part in self.schemes)

    @property
    def key_width(self) -> int:
        return self._part("prepare").key_width

    @property
    def kept_keys(self) -> tuple[int, int] | None:
        kept = [part.kept_keys for part in self.schemes if part.kept_keys is not None]
        if not kept:
            return None
        first, last = (max(counts) for counts in zip(*kept, strict=True))
        # Gates between the first keys and the query count, so no key in between may be dropped.
        return None if first and any(part.sums_gates for part in self.schemes) else (first, last)

    @property
    def caches_one_key(self) -> bool:
        return any(part.caches_one_key for part in self.schemes)

    @property
    def needs_whole_text(self) -> bool:
        return any(part.needs_whole_text for part in self.schemes)

    @property
    def randomises(self) -> bool:
        return any(part.randomises for part in self.schemes)

    @property
    def keeps_table(self) -> bool:
        return any(part.keeps_table for part in self.schemes)

    @property
    def unchanged_below(self) -> int:
        return min(part.unchanged_below for part in self.schemes)

    @property
    def longest(self) -> int | None:
        ends = [end for part in self.schemes if (end := part.longest) is not None]
        return min(ends, default=None)

    def terms(self, ctx: PositionContext) -> Terms:
        regions = self.regions(ctx)
        if any(region.remaps for region in regions):
            ctx = replace(ctx, remapped=True)
        merged = reduce(Terms.merge, [part.terms(ctx) for part in self.schemes])
        # A part knows its own rotations only. Those of the composition are retuned.
        return replace(merged, regions=regions, row_rotation=self.row_rotation())

    def _part(self, hook: str) -> Scheme:
        """The part that overrides a hook; the first part if none does."""
        parts = self.schemes
        overriding = (number for number, part in enumerate(parts) if overrides(part, hook))
        return parts[self.memoized(f"part that overrides {hook}", lambda: next(overriding, 0))]

    @property
    def shown_name(self) -> str:
        """Name of the composition."""
        return self.name

    def extra_repr(self) -> str:
        return self.name

    def _at_most_one(self, action: str, parts: list[Scheme]) -> None:
        if len(parts) > 1:
            names = " and ".join(repr(p.record.name) for p in parts)
            raise CannotCombine(f"{names} both {action}. Keep one of them.")

    def check_effects(self) -> None:
        """Refuse a second code, and a part that only removes the model's positions if another part brings positions."""
        parts = self.schemes
        coding = [p for p in parts if overrides(p, "embed") or overrides(p, "read_table")]
        self._at_most_one("add a code to the embeddings", coding)
        replacing = [p for p in parts if p.replaces_host]
        removing = [p for p in replacing if not any(overrides(p, hook) for hook in POSITION_HOOKS)]
        if removing and len(replacing) > len(removing):
            raise CannotCombine(
                f"{removing[0].record.name!r} only removes the model's positions, and another scheme of this "
                "composition brings positions. Leave one of them out."
            )

    @staticmethod
    def _check_fractions(parts: Sequence[Scheme]) -> None:
        """Refuse a part that is defined at whole positions only beside one that makes positions fractional."""
        whole, between = ([p for p in parts if getattr(p, a)] for a in ("whole_positions", "needs_function"))
        if whole and between:
            raise FractionalPosition(
                f"{whole[0].record.name!r} is defined at whole positions only, and {between[0].record.name!r} makes "
                "positions fractional. Use a function of position or distance, such as 'rope', 'alibi' or 'kerple'."
            )
