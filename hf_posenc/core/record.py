"""The record of a scheme: its metadata, available without importing its class or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry

CachedKeys = Literal["final", "copies", "raw", "heads"]
"""What the KV cache holds of a key: as attention reads it, a copy for each region or query head, or unrotated."""
NEEDS = ("causal", "rotation", "relative", "function", "table")
"""What a scheme may need of a model; see the ``needs_…`` attributes of `hf_posenc.Scheme`."""
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
        name: the literature's name, lower case.
        aliases: other names of the scheme.
        needs: what a model must have for the scheme to be defined on it without another scheme, among `NEEDS`.
        learned: whether it has trainable parameters with its default options; None where an option has no default, so
            that it depends on the patch.
        zero_shot: whether a pretrained RoPE model can use it untrained.
        recipe: whether it is a training recipe, which changes positions in training mode only.
        cache: what the KV cache holds: ``final`` keys, ``copies`` (one per region), ``heads`` (a key and a value per
            query head) or ``raw`` (rotated for each query).
        paper: arXiv id or address.
        title: first line of its module's docstring.
        summary: first sentence of its class's docstring.
        about: the class's docstring.
        text: the module's docstring.
        formula: the formulas of that docstring in LaTeX (lines of ``aligned``), a blank line between its blocks.
        options: name to ``[type with its range, default]``, in words.
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
        """What it takes to use it on a pretrained model: ``zero-shot``, ``training``, or that it is a ``recipe``."""
        if self.recipe:
            return "recipe"
        return "zero-shot" if self.zero_shot else "training"

    @property
    def defined_for(self) -> str:
        """The models on which the scheme is defined on its own, in words: ``decoders with rotation``, or ``any``."""
        providers = " and ".join(PROVIDERS[need] for need in self.needs if need in PROVIDERS)
        if not self.needs:
            return "any"
        return ("decoders" if "causal" in self.needs else "models") + (f" with {providers}" if providers else "")

    def unmet_needs(self, geometry: Geometry) -> tuple[str, ...]:
        """Which of `needs` a model of this geometry does not meet; another scheme of a composition may meet them."""
        met = {
            "causal": geometry.causal,
            "rotation": geometry.rotary is not None,
            "relative": geometry.relative,
            "function": geometry.table is None,
            "table": geometry.table is not None,
        }
        return tuple(need for need in self.needs if not met[need])
