"""Where a scheme is not defined, it is refused with the right error, and the model stays as it was."""

from __future__ import annotations

import pytest

from hf_posenc import checks, list_schemes
from hf_posenc.checks import Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, traces
from hf_posenc.checks.tiny_models import TINY_MODELS, TRAINED_LENGTH, tiny_model
from hf_posenc.errors import SchemeNotDefined

from .matrix import PAIRS

REFUSALS = checks.refusals()


@pytest.mark.parametrize(("model", "scheme"), REFUSALS, ids="-".join)
def test_undefined_pair_is_refused(model: str, scheme: str) -> None:
    patched = tiny_model(model)
    before = traces(patched, random_tokens(patched, TRAINED_LENGTH))
    with pytest.raises(SchemeNotDefined, match=r"is not defined for .*\. .*It is defined for"):
        Case(patched, scheme, factor=1).apply(patched)
    assert differences(before, traces(patched, random_tokens(patched, TRAINED_LENGTH))) == (0.0, "nothing")


def test_every_pair_is_defined_or_refused() -> None:
    defined = {(pair.model_name, pair.scheme_name) for pair in PAIRS}
    everything = {(model, record.name) for model in TINY_MODELS for record in list_schemes()}
    assert defined | set(REFUSALS) == everything
    assert not defined & set(REFUSALS)


def test_records_say_where_schemes_are_defined() -> None:
    """What `hf-posenc list --model` goes by, against what a patch does."""
    for model in TINY_MODELS:
        pair = Case(model, "none")
        for record in list_schemes():
            defined = not record.unmet_needs(pair.geometry)
            assert defined == ((model, record.name) not in REFUSALS), (model, record.name)
