"""Options with which a scheme equals the unpatched model by definition, and nearby options, which must differ."""

from __future__ import annotations

import pytest
from torch import Tensor

from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.patching.state import describe

# scheme: options that make it an identity, options that do not; on a text of the trained length.
LLAMA = {
    "rope": ({}, {"base": 10_100.0}),
    "pi": ({"factor": 1}, {"factor": 1.1}),
    "ntk": ({"factor": 1}, {"factor": 1.1}),
    "ntk_parts": ({"factor": 1}, {"factor": 1.1}),
    "yarn": ({"factor": 1}, {"factor": 1.1}),
    "llama3": ({"factor": 1}, {"factor": 2}),
    "dynamic_ntk": ({"factor": 1}, None),
    "dynamic_yarn": ({"factor": 1}, None),
    "window": ({"size": TRAINED_LENGTH}, {"size": TRAINED_LENGTH - 1}),
    "rerope": ({"window": TRAINED_LENGTH - 1}, {"window": 4}),
    "self_extend": ({"group": 1}, {"group": 4, "window": 8}),
}
TABLES = ["gpt2", "bert", "bert_decoder"]


def moved(case: Case) -> float:
    """Deviation from the unpatched model on a text of the trained length."""

    def outputs() -> Tensor:
        return forward(model, random_tokens(model, TRAINED_LENGTH))

    with case.patched() as model:
        after = outputs()
    with case.unpatched() as model:
        return max_deviation(after, outputs())[0]


@pytest.mark.parametrize("scheme", LLAMA)
def test_neutral_options_are_an_identity(scheme: str) -> None:
    neutral, other = LLAMA[scheme]
    case = Case("llama", scheme, **neutral)
    assert moved(case) <= case.tolerance("identity")
    if other is not None:
        assert moved(Case("llama", scheme, **other)) > 10 * case.tolerance("identity")


@pytest.mark.parametrize("model", TABLES)
def test_learned_is_an_identity_on_models_with_a_table(model: str) -> None:
    case = Case(model, "learned", factor=1)
    assert moved(case) <= case.tolerance("identity")
    with case.patched() as patched:
        assert describe(patched).proof.verdict == "identity"


@pytest.mark.parametrize("model", TABLES)
def test_scales_and_masks_keep_the_table(model: str) -> None:
    for scheme in ("logn", "window"):
        case = Case(model, scheme, factor=1)
        assert moved(case) <= case.tolerance("identity")


@pytest.mark.parametrize("model", TABLES)
def test_none_removes_the_table(model: str) -> None:
    assert moved(Case(model, "none", factor=1)) > 0.1
