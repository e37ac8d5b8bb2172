"""Invalid values of every option of every scheme are refused by the name of the option."""

from __future__ import annotations

from typing import Any

import pytest

import hf_posenc
from hf_posenc import errors
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import list_schemes

from .row import INF, NAN, TWO_SENTENCES

NO_OPTION: list[Any] = [NAN, INF, 1e300, 2**31, object(), {"a": 1}, [NAN], "\x1b[31m", -5, True]
MODELS = {name: tiny_model(name) for name in ("llama", "gpt2")}
BUILT_IN = [record for record in list_schemes() if record.options and record.target.startswith("hf_posenc.")]


@pytest.mark.parametrize("record", BUILT_IN, ids=lambda record: record.name)
def test_a_value_of_another_kind_is_refused(record: SchemeRecord) -> None:
    model = MODELS["gpt2" if "table" in record.needs else "llama"]
    for name, (kind, _) in record.options.items():
        for value in NO_OPTION:
            any_sign = value == -5 and kind in ("number", "number or None")
            if any_sign or (value is True and "True or False" in kind) or (isinstance(value, str) and kind == "text"):
                continue
            with pytest.raises((errors.OptionOutOfRange, errors.UnknownOption), match=name) as caught:
                hf_posenc.patch_model(model, record.name, **{name: value})
            assert TWO_SENTENCES.match(str(caught.value))
            assert not hf_posenc.is_patched(model)
