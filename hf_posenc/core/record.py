"""Metadata of a scheme, available without importing its class or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry

CachedKeys = Literal["final", "copies", "raw", "heads"]
"""Content of the KV cache: keys as attention reads them, a copy for each region or query head, or unrotated keys."""
NEEDS = ("causal", "rotation", "relative", "function", "table")
"""Properties of a model that a scheme may need; see the ``needs_…`` attributes of `hf_posenc.Scheme`."""
PROVIDERS = {
    "rotation": "rotation",
    "relative": "rotation or a bias",
    "function": "no position table",
    "table": "a position table",
}


@dataclass(frozen=True)
class SchemeRecord:
    """Metadata of a scheme, known without importing it.

    Attributes:
        name: name in the literature, lower case.
        aliases: other names of the scheme.
        needs: properties, from `NEEDS`, that a model must have to use the scheme alone.
        learned: whether it has trainable parameters with its default options; None if an option has no default, so
            that it depends on the patch.
        zero_shot: whether a pretrained RoPE model can use it untrained.
        recipe: whether it is a training recipe, which changes positions in training mode only.
        cache: content of the KV cache: ``final`` keys, ``copies`` (one per region), ``heads`` (a key and a value per
            query head) or ``raw`` (rotated for each query).
        paper: arXiv id or address.
        title: first line of its module's docstring.
        summary: first sentence of its class's docstring.
        about: the class's docstring.
        text: the module's docstring.
        formula: formulas of the module's docstring in LaTeX (lines of ``aligned``), with a blank line between blocks.
        options: maps an option to its type with its range, and its default, in words.
        target: ``module:class``.
    """

    name: str
    aliases: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    learned: bool | None = False
    zero_shot: bool = False
    recipe: bool = False
    cache: CachedKeys = "final"
    paper: str = ""
    title: str = ""
    summary: str = ""
    about: str = ""
    text: str = ""
    formula: str = ""
    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    target: str = ""

    @property
    def use(self) -> str:
        """How a pretrained model can use the scheme: ``zero-shot``, after ``training``, or as a ``recipe``."""
        if self.recipe:
            return "recipe"
        return "zero-shot" if self.zero_shot else "training"

    @property
    def shipped(self) -> bool:
        """Whether the scheme is one of this package, and not one that a user or another package registered."""
        return self.target.startswith("hf_posenc.schemes.")

    @property
    def defined_for(self) -> str:
        """Models that can use the scheme without another one, in words: ``decoders with rotation``, or ``any``."""
        if not self.needs:
            return "any"
        models = "decoders" if "causal" in self.needs else "models"
        providers = " and ".join(PROVIDERS[need] for need in self.needs if need in PROVIDERS)
        return f"{models} with {providers}" if providers else models

    def unmet_needs(self, geometry: Geometry) -> tuple[str, ...]:
        """Items of `needs` that a model of this geometry lacks; another scheme of a composition may provide them."""
        met = {
            "causal": geometry.causal,
            "rotation": geometry.rotary is not None,
            "relative": geometry.relative,
            "function": geometry.table is None,
            "table": geometry.table is not None,
        }
        return tuple(need for need in self.needs if not met[need])
