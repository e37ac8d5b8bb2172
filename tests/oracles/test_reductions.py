"""Schemes that are other schemes for some values of their options or parameters, on whole small models.

Each line is an identity of the definitions, so its two sides share no formula; and each has a control, a neighbouring
value for which it must not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import nn

from hf_posenc import patch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.patching.state import describe
from hf_posenc.schemes.base import Scheme

from . import models
from .models import HEADS, TRAINED

FACTOR = 4
LENGTH = 3 * TRAINED
LIMIT = 1e-4  # two ways of rounding, behind two layers of sharp softmax
DECODERS = ("llama", "gpt2")
ROTATING = ("llama",)
ALL = ("llama", "gpt2", "bert")
Adjust = Callable[[Any], None]


def as_it_is(scheme: Any) -> None:
    """Parameters as they are drawn."""


@dataclass(frozen=True)
class Same:
    """One scheme is another.

    Attributes:
        one, options: a scheme, and the options for which it is the other.
        two, other: the other, with its options.
        unlike: options of ``one`` for which it is not; or, where parameters decide, ``adjust`` is left out.
        adjust: sets the parameters of ``one`` to values for which it is the other.
        length: of the text.
    """

    one: str
    two: str
    options: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    unlike: dict[str, Any] = field(default_factory=dict)
    adjust: Adjust = as_it_is
    models: tuple[str, ...] = ALL
    length: int = LENGTH
    factor: float = FACTOR

    def __str__(self) -> str:
        listed = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.one}({listed})={self.two}"


def emptied(*names: str) -> Adjust:
    """Parameters of these names at zero, all others anything."""

    def adjust(scheme: Any) -> None:
        for name, weight in scheme.named_parameters():
            if any(name.startswith(one) for one in names):
                nn.init.zeros_(weight)

    return adjust


ONES = [1.0] * (models.HEAD_DIM // 2)
CASES = [
    # slopes and temperatures
    Same("alibi", "none", {"slopes": [0.0] * HEADS}, unlike={"slopes": [0.0, 0.0, 0.0, 0.1]}),
    Same("deberta", "drope", {"norm": False}, {"softmax_scale": 3**-0.5}, adjust=emptied("table"), models=DECODERS),
    Same("drope", "none", unlike={"softmax_scale": 1.5}, models=DECODERS),
    # rotations
    Same("partial", "rope", {"fraction": 1.0}, unlike={"fraction": 0.75}),
    Same("partial", "rope", {"fraction": 0.5}, {"rotary_dim": 8}, {"fraction": 0.75}),
    Same("abf", "rope", {"base": 1e4}, unlike={"base": 2e4}),
    Same("proportional", "pi", {"p": 1.0}, unlike={"p": 0.75}),
    Same("proportional", "rope", {"p": 1.0}, unlike={"p": 0.5}, factor=1, length=TRAINED),
    Same("proportional", "none", {"p": 0.0}, unlike={"p": 0.25}),
    Same("xpos", "rope", {"gamma": 1e9}, unlike={"gamma": 0.4, "scale_base": 16.0}, models=("gpt2",)),
    Same("mrope", "rope", unlike={"base": 500.0}),
    Same("rope_nd", "rope", {"axes": 1, "base": 1e4}, unlike={"axes": 1, "base": 500.0}),
    Same("rope", "rope", {"learn_freq": True}, adjust=emptied("correction")),
    Same("yarn", "ntk_parts", {"attention_factor": 1.0}, unlike={"attention_factor": 1.2}),
    Same("llama3", "ntk_parts", {}, {"ramp": "rotations", "beta_fast": 4.0, "beta_slow": 1.0},
         {"high_freq_factor": 2.0}),
    Same("longrope", "rope", {"short_factor": ONES, "long_factor": ONES, "attention_factor": 1.0},
         unlike={"short_factor": ONES, "long_factor": [2.0] * 8, "attention_factor": 1.0}, models=DECODERS),
    Same("irope", "rope", {"global_scheme": "rope"}, unlike={"global_scheme": "none"}, models=DECODERS),
    # remaps of a model that rotates
    Same("leaky_rerope", "rope", {"k": 1.0}, unlike={"k": 2.0}, models=ROTATING),
    Same("leaky_rerope", "rerope", {"k": 1e12}, unlike={"k": 16.0}, models=ROTATING),
    Same("self_extend", "rope", {"group": 1}, unlike={"group": 7, "window": 9}, models=ROTATING, length=TRAINED,
         factor=1),
    Same("rerope", "rope", {"window": 31}, unlike={"window": 9}, models=ROTATING, length=TRAINED),
    Same("dca", "rope", unlike={"chunk": 12, "local": 4}, models=ROTATING, length=TRAINED * 3 // 4),
    Same("window", "rope", {"size": LENGTH}, unlike={"size": 20}, models=ROTATING),
    Same("sinks", "rope", {"recent": LENGTH}, unlike={"recent": 20}, models=ROTATING),
    Same("lm_infinite", "rope", {"n_local": LENGTH}, unlike={"n_local": 20}, models=ROTATING),
    # recipes rest outside training
    *(Same(f"alibi+{name}", "alibi", unlike={"slopes": "geometric", "bias_max": 4.0})
      for name in ("pose", "shape", "cape")),
]  # fmt: skip
PAIRS = [pytest.param(case, model, id=f"{case}-{model}") for case in CASES for model in case.models]


def patched(model: str, scheme: str, options: dict[str, Any], factor: float) -> Any:
    """A patched model whose parameters have left their first values."""
    build, _ = models.MODELS[model]
    one = patch_model(build(), scheme, factor=factor, **options)
    perturb_parameters(one)
    return one


@pytest.mark.parametrize(("case", "model"), PAIRS)
def test_special_cases_equal_other_schemes(case: Same, model: str) -> None:
    ids = models.text(case.length)
    one = patched(model, case.one, case.options, case.factor)
    two = models.logits(patched(model, case.two, case.other, case.factor), ids)
    for scheme in [m for m in one.modules() if isinstance(m, Scheme)]:
        case.adjust(scheme)
    assert (models.logits(one, ids) - two).abs().max() <= LIMIT
    control = patched(model, case.one, case.options | case.unlike, case.factor)
    assert (models.logits(control, ids) - two).abs().max() > 10 * LIMIT, describe(control)


@pytest.mark.parametrize("model", ROTATING)
def test_logn_and_llama4_start_where_their_lengths_do(model: str) -> None:
    """Within the trained length, and below the floor, both are the unpatched model."""
    build, _ = models.MODELS[model]
    stock = models.logits(build(), models.text(LENGTH))
    temperature = models.logits(patch_model(build(), "llama4_temp", factor=FACTOR), models.text(LENGTH))
    assert (temperature - stock).abs().max() <= LIMIT
    logn = models.logits(patch_model(build(), "logn", factor=FACTOR), models.text(LENGTH))
    assert (logn - stock)[:TRAINED].abs().max() <= LIMIT
    assert (logn - stock)[TRAINED + 1 :].abs().max() > 10 * LIMIT
