"""Options under which a scheme is, by its definition, the host itself; and options next to them: they must move it."""

from __future__ import annotations

import pytest
from torch import Tensor

from hf_posenc.checks import Case
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.patching.state import describe

# scheme, options that make it the host, options that do not; all on a text within the trained length.
LLAMA = {
    "rope": ({}, {"base": 10_100.0}),
    "pi": ({"factor": 1}, {"factor": 1.1}),
    "ntk": ({"factor": 1}, {"factor": 1.1}),
    "ntk_parts": ({"factor": 1}, {"factor": 1.1}),
    "yarn": ({"factor": 1}, {"factor": 1.1}),
    "llama3": ({"factor": 1}, {"factor": 2}),
    "dynamic_ntk": ({"factor": 1}, None),
    "window": ({"size": TRAINED_LENGTH}, {"size": TRAINED_LENGTH - 1}),
    "rerope": ({"window": TRAINED_LENGTH - 1}, {"window": 4}),
    "self_extend": ({"group": 1}, {"group": 4, "window": 8}),
}
TABLES = ["gpt2", "bert", "bert_decoder"]


def moved(pair: Case) -> float:
    """By how much a text of the trained length reads otherwise than unpatched."""

    def reading() -> Tensor:
        return forward(model, random_tokens(model, TRAINED_LENGTH))

    with pair.patched() as model:
        after = reading()
    with pair.host() as model:
        return max_deviation(after, reading())[0]


@pytest.mark.parametrize("scheme", LLAMA)
def test_neutral_options_are_the_host(scheme: str) -> None:
    neutral, other = LLAMA[scheme]
    pair = Case("llama", scheme, **neutral)
    assert moved(pair) <= pair.limit("identity")
    if other is not None:
        assert moved(Case("llama", scheme, **other)) > 10 * pair.limit("identity")


@pytest.mark.parametrize("model", TABLES)
def test_learned_is_what_hosts_with_a_table_do_already(model: str) -> None:
    pair = Case(model, "learned", factor=1)
    assert moved(pair) <= pair.limit("identity")
    with pair.patched() as patched:
        assert describe(patched).proof.verdict == "identity"


@pytest.mark.parametrize("model", TABLES)
def test_temperature_and_mask_keep_the_table(model: str) -> None:
    for scheme in ("logn", "window"):
        pair = Case(model, scheme, factor=1)
        assert moved(pair) <= pair.limit("identity")


@pytest.mark.parametrize("model", TABLES)
def test_no_position_is_not_what_hosts_with_a_table_do(model: str) -> None:
    assert moved(Case(model, "none", factor=1)) > 0.1
