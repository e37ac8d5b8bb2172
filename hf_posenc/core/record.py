"""What is known of a scheme without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


ALL_MODELS = ("llama", "gpt2", "bert")


@dataclass(frozen=True)
class SchemeRecord:
    """What is known of a scheme without loading it.

    Attributes:
        name: the literature's name, lower case.
        aliases: other names it answers to.
        models: adapters it is defined for; ``undefined`` says why not for the others.
        learned: whether it has parameters to train.
        zero_shot: whether a pretrained RoPE model can use it untrained.
        recipe: whether it is a recipe for training, which moves positions about while it lasts.
        cache: what the key cache holds: ``final`` keys, ``copies`` (one a region) or ``raw`` (rotated when read).
        paper: arXiv id or address.
        title: first line of its module's docstring.
        summary: first sentence of its own docstring.
        about: the whole of its own docstring.
        text: the whole of its module's.
        options: name to ``[type with its range, default]``, in words.
        target: ``module:class``.
    """

    name: str
    aliases: tuple[str, ...] = ()
    models: tuple[str, ...] = ALL_MODELS
    undefined: str = ""
    learned: bool = False
    zero_shot: bool = False
    recipe: bool = False
    cache: str = "final"
    paper: str = ""
    title: str = ""
    summary: str = ""
    about: str = ""
    text: str = ""
    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    target: str = ""

    @property
    def use(self) -> str:
        """What it takes to use it on a pretrained model: ``zero-shot``, ``training``, or that it is a ``recipe``."""
        if self.recipe:
            return "recipe"
        return "zero-shot" if self.zero_shot else "training"
