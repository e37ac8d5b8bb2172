"""Named fine-tuning recipes: each changes the scheme, and has a row length and default settings.

Settings that the caller passes override those of the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from hf_posenc.errors import TrainingImpossible, nearest, shown
from hf_posenc.training.config import Training
from hf_posenc.training.rows import lengths_of

Rows = Literal["trained", "target"]
STEPS = 150


@dataclass(frozen=True)
class FinetuneRecipe:
    """A fine-tuning recipe.

    Attributes:
        summary: description in one line.
        source: paper of the idea.
        scheme: function from the requested scheme, or None, to the scheme to patch in.
        rows: whether rows have the trained length or the target length.
        settings: default values of fields of `Training`.
    """

    summary: str
    source: str
    scheme: Callable[[str | None], str | None] = lambda scheme: scheme
    rows: Rows = "target"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check(self, **settings: Any) -> None:
        """Check the settings that do not depend on a model, before one is loaded.

        Raises:
            TrainingImpossible: a setting is out of range, or the method does not use it.
        """
        self.of_length(2, settings | {"length": 2})

    def training(self, model: nn.Module, **settings: Any) -> Training:
        """Return the settings for a patched model; ``settings`` override those of the recipe."""
        trained, target = lengths_of(model)
        return self.of_length(target if self.rows == "target" else trained, settings)

    def of_length(self, length: int, settings: Mapping[str, Any]) -> Training:
        """Return the recipe's settings for rows of this length, overridden by ``settings``."""
        defaults = {"length": length, "steps": STEPS, **self.settings}
        if settings.get("epochs") is not None:
            defaults["steps"] = None
        return Training(**{**defaults, **settings})


def with_pose(scheme: str | None) -> str:
    """Compose the scheme, YaRN by default, with PoSE."""
    scheme = scheme or "yarn"
    return scheme if "pose" in scheme.split("+") else f"{scheme}+pose"


def only_drope(scheme: str | None) -> str:
    """Return DroPE, and refuse any other scheme."""
    if scheme not in (None, "drope"):
        raise TrainingImpossible(
            f"Recipe drope removes the rotation, and scheme {shown(scheme)} was asked for. Leave the scheme out."
        )
    return "drope"


RECIPES: dict[str, FinetuneRecipe] = {
    "full_length": FinetuneRecipe(
        "rows of the target length, with LoRA, norms and embeddings trained",
        "Chen et al. 2023, LongLoRA, arXiv:2309.12307, section 3.3",
    ),
    "pose": FinetuneRecipe(
        "rows of the trained length, whose positions skip up to the target length",
        "Zhu et al. 2023, PoSE, arXiv:2309.10400",
        scheme=with_pose,
        rows="trained",
        settings={"batch": 8, "steps": 60},
    ),
    "drope": FinetuneRecipe(
        "the rotation is removed, and all weights are recalibrated on rows of the trained length",
        "Gelberg et al. 2025, DroPE, arXiv:2512.12167",
        scheme=only_drope,
        rows="trained",
        settings={"method": "full", "batch": 8, "steps": 200},
    ),
}
"""Recipes by name, as in ``hf-posenc finetune --recipe``."""


def recipe_of(name: str) -> FinetuneRecipe:
    """Return the recipe called ``name``, or raise `TrainingImpossible`."""
    if name not in RECIPES:
        raise TrainingImpossible(
            f"There is no recipe {shown(name)}.{nearest(name, RECIPES)} Choose one of {', '.join(RECIPES)}."
        )
    return RECIPES[name]
