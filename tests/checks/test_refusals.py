"""A scheme that is not defined for a model is refused with `SchemeNotDefined`, and the model is unchanged."""

from __future__ import annotations

import pytest

from hf_posenc import list_schemes
from hf_posenc.checks import Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TINY_MODELS, TRAINED_LENGTH, tiny_model
from hf_posenc.errors import SchemeNotDefined

from .case_lists import CASES

DEFINED = {(case.model_name, case.scheme_name) for case in CASES}
UNDEFINED = sorted({(model, record.name) for model in TINY_MODELS for record in list_schemes()} - DEFINED)


@pytest.mark.parametrize(("model", "scheme"), UNDEFINED, ids="-".join)
def test_undefined_case_is_refused(model: str, scheme: str) -> None:
    patched = tiny_model(model)
    before = snapshot(patched, random_tokens(patched, TRAINED_LENGTH))
    with pytest.raises(SchemeNotDefined):
        Case(patched, scheme, factor=1).apply(patched)
    assert differences(before, snapshot(patched, random_tokens(patched, TRAINED_LENGTH))) == (0.0, "nothing")
