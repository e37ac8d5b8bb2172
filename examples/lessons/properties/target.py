"""Target of property measurements: a scheme on small shapes, at lengths within and beyond the trained length.

Every property uses the same embeddings, scores and lengths of a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.checks.case import perturb_parameters
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.torch_state import fixed_seed
from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.plots.models import Kind, Shapes, first_kind
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import build, positions_supported
from hf_posenc.schemes.spec import Plan, SchemeSpec, layout
from properties.layer import Layer

TRAINED, FACTOR, LAYERS = 64, 4, 4
WIDTH, HEADS, HEAD_DIM = 128, 4, 32
FAR = 2**16  # largest position for schemes without a limit: about one turn of the slowest usual pair


def bench(model: Kind, *, factor: int = FACTOR, width: int = WIDTH, causal: bool | None = None) -> Geometry:
    """Geometry of a small model: ``llama`` has RoPE, ``gpt2`` and ``bert`` have a table, ``bert`` is an encoder."""
    shapes = Shapes(model, heads=HEADS, head_dim=HEAD_DIM, width=width, layers=LAYERS, trained_length=TRAINED)
    own = shapes.geometry(model, factor * TRAINED)
    kv_heads = HEADS if own.rotary is None else HEADS // 2
    return replace(own, kv_heads=kv_heads, causal=own.causal if causal is None else causal)


@dataclass
class PropertyTarget:
    """A scheme with the shapes and lengths it is measured at.

    Attributes:
        name: name of the scheme as users write it; with the number of the layer if layers differ.
        plan: scheme and options of one layer.
        model: type of the model, see `bench`.
    """

    name: str
    plan: Plan
    model: Kind
    _layers: dict[object, Layer] = field(default_factory=dict, repr=False)

    def scheme(self, *, factor: int | None = None, seed: int = 0, **of_bench: Any) -> Scheme:
        """Build the scheme; learned parameters are random, because zeros would have every property."""
        with fixed_seed(seed):
            scheme = self._built(factor, **of_bench).eval()
            scheme.reset_parameters()
            holder = nn.Module()
            holder.posenc = scheme
            perturb_parameters(holder)
        return scheme

    def layer(
        self,
        *,
        factor: int | None = None,
        dtype: torch.dtype = torch.float64,
        alike: bool = False,
        **of_bench: Any,
    ) -> Layer:
        """The scheme in an attention layer, cached; with ``alike``, equal tokens have equal queries and keys."""
        key = (factor, dtype, alike, *of_bench.items())
        if key not in self._layers:
            self._layers[key] = Layer(self.scheme(factor=factor, **of_bench), dtype, alike=alike)
        return self._layers[key]

    def codes(self, positions: Tensor, layer: Layer | None = None) -> Tensor | None:
        """Codes at ``positions [n]`` of one text, ``[n, width]``, float64; None for a scheme without codes."""
        at = layer or self.layer()
        code = at.code(at.scheme.reposition(positions[None], training=False))
        return None if code is None else code[0].double()

    @cached_property
    def has_codes(self) -> bool:
        """Whether the scheme adds codes to embeddings."""
        return self.codes(torch.arange(2)) is not None

    @cached_property
    def reach(self) -> int:
        """Number of positions that the scheme is defined for, at most `FAR`."""
        return min(positions_supported(self.layer().scheme) or FAR, FAR)

    @cached_property
    def length(self) -> int:
        """Tokens of a text: twice the trained length, or as many as the scheme is defined for."""
        return min(2 * TRAINED, self.reach)

    def profile(self, positions: Tensor, *, contents: int = 1, alike: bool = False) -> Tensor:
        """Logits of the last query with every key, minus that with its own key: ``[contents · heads, n]``.

        Args:
            positions: ``[n]``, ascending; the last is that of the query.
            contents: number of queries with different contents; all keys have the same content.
            alike: whether query and keys are equal in each head, so that they differ only by position.
        """
        scores = self.last_scores(1, positions, contents=contents, alike=alike)[:, :, 0].flatten(0, 1)
        return scores - scores[:, -1:]

    def last_scores(self, rows: int, positions: Tensor, *, contents: int, alike: bool = False) -> Tensor:
        """Logits of the last ``rows`` queries with every key, ``[contents, heads, rows, n]``; see `profile`."""
        at = self.layer(alike=alike)
        query, key = at.tokens(len(positions), contents)
        return at.scores(query, query if alike else key, positions[None], last=rows)

    def constant_scores(self, positions: Tensor, layer: Layer | None = None) -> Tensor:
        """Logits of a repeated token minus each query's logit with itself, ``[heads, n, n]``: only position matters."""
        at = layer or self.layer()
        scores = at.scores(*at.tokens(len(positions)), positions[None])[0]
        return scores - scores.diagonal(0, -2, -1)[..., None]

    @cached_property
    def moved_by_position(self) -> float:
        """Largest difference between logits of equal keys; 0 where position does not affect attention."""
        return spread(self.profile(torch.arange(self.length)))

    @cached_property
    def counts_tokens(self) -> bool:
        """Whether distance is the number of tokens in between, not the difference of positions."""
        near = torch.arange(min(self.length, self.reach // 3))
        if len(near) < 3 or self.has_codes:
            return False
        change = (self.profile(3 * near) - self.profile(near)).nan_to_num(neginf=-1e3)
        return self.moved_by_position > ROUNDING and float(change.abs().max()) < ROUNDING

    def _built(self, factor: int | None, **of_bench: Any) -> Scheme:
        try:
            return build(self.plan, bench(self.model, factor=factor or FACTOR, **of_bench), self.model)
        except OptionOutOfRange:  # the scheme ends before the target length
            if factor is not None:
                raise
            return build(self.plan, bench(self.model, factor=1, **of_bench), self.model)


ROUNDING = 1e-5  # rounding of numbers of order one, because tables are float32


def spread(scores: Tensor) -> float:
    """Largest difference between logits of a row; infinite if keys are masked."""
    if not bool(scores.isfinite().all()):
        return float("inf")
    return float((scores.amax(-1) - scores.amin(-1)).max())


def targets(
    spec: SchemeSpec, options: Mapping[str, Any] | None = None, *, model: Kind | None = None
) -> list[PropertyTarget]:
    """Targets of a scheme: one, or several if its layers differ.

    Args:
        spec: scheme as for `hf_posenc.patch_model`.
        options: options of the scheme.
        model: type of the model; by default the first of llama, gpt2, bert for which the scheme is defined.

    Raises:
        PosEncError: the scheme or an option is unknown, or the scheme is defined for none of the models.
    """
    chosen = layout(spec, options or {}, None, LAYERS)
    numbers = chosen.representatives(LAYERS)
    kind = first_kind(spec) if model is None else model
    build(chosen.default, bench(kind, factor=1), kind)
    plans = {number: chosen.plan_of(number, LAYERS) for number in numbers}
    words = ",".join(f"{name}={value}" for name, value in (options or {}).items())
    full_name = chosen.default.name + (f":{words}" if words else "")
    return [
        PropertyTarget(full_name if len(plans) == 1 else f"{full_name} (layer {number})", plan, kind)
        for number, plan in plans.items()
    ]


@dataclass(frozen=True)
class PropertyValue:
    """Measured property of a scheme.

    Attributes:
        holds: whether the scheme has the property; None if it is not applicable or not a yes/no question.
        value: the number that decides; None if the property is not applicable.
        explanation: what the number is, or why the property is not applicable.
        note: addition to the answer, such as ``affine``.
        more: further numbers by name.
        number: format of the number with its meaning, such as ``least difference {:.2g}``; by default the property's.
    """

    holds: bool | None
    value: float | None
    explanation: str
    note: str = ""
    more: dict[str, float] = field(default_factory=dict)
    number: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return "—"
        answer = f"{self.answer}: " if self.answer else ""
        return answer + (self.number or "{:.2g}").format(self.value) + (f" ({self.note})" if self.note else "")

    @property
    def answer(self) -> str:
        """``yes`` or ``no``; ``—`` if the property is not applicable, empty if it is no yes/no question."""
        if self.value is None:
            return "—"
        return "" if self.holds is None else "yes" if self.holds else "no"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinite and NaN numbers are written as text."""
        return {
            "holds": self.holds, "value": finite(self.value), "says": self.explanation, "note": self.note,
            "more": {name: finite(value) for name, value in self.more.items()},
        }  # fmt: skip


def finite(number: float | None) -> float | str | None:
    """Return the number, or text for an infinite number or NaN, which JSON lacks."""
    return number if number is None or isfinite(number) else str(number)


def not_applicable(reason: str) -> PropertyValue:
    """Value of a property that does not apply to a scheme."""
    return PropertyValue(None, None, reason)
