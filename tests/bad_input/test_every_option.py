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

NO_OPTION: list[Any] = [
    NAN,
    INF,
    -INF,
    1e300,
    5e-324,
    10**30,
    2**31,
    10**400,
    2 + 1j,
    object(),
    b"x",
    {"a": 1},
    {1},
    "x" * 1000,
    [NAN],
    [[[[[1]]]]],
    "\x1b[31m",
    "nan",
    -5,
]
MODELS = {name: tiny_model(name) for name in ("llama", "gpt2", "bert")}
BUILT_IN = [record for record in list_schemes() if record.options and record.target.startswith("hf_posenc.")]


@pytest.mark.parametrize("record", BUILT_IN, ids=lambda record: record.name)
def test_a_value_of_another_kind_is_refused_in_two_sentences(record: SchemeRecord) -> None:
    model = MODELS["gpt2" if "table" in record.needs else "llama"]
    for name, (kind, _) in record.options.items():
        for value in NO_OPTION:
            if value == -5 and kind in ("number", "number or None"):  # any sign will do
                continue
            if isinstance(value, str) and kind == "text":  # the name of another scheme
                continue
            with pytest.raises(errors.PosEncError) as caught:
                hf_posenc.patch_model(model, record.name, **{name: value})
            message = str(caught.value)
            assert isinstance(caught.value, (errors.OptionOutOfRange, errors.UnknownOption)), (name, value, message)
            assert name in message
            assert TWO_SENTENCES.match(message), message
            assert not hf_posenc.is_patched(model)


@pytest.mark.parametrize("record", BUILT_IN, ids=lambda record: record.name)
def test_booleans_are_not_numbers(record: SchemeRecord) -> None:
    model = MODELS["gpt2" if "table" in record.needs else "llama"]
    for name, (kind, _) in record.options.items():
        if "True or False" not in kind:
            with pytest.raises(errors.OptionOutOfRange, match=name):
                hf_posenc.patch_model(model, record.name, **{name: True})


@pytest.mark.parametrize("option", [("cope", "npos"), ("learned", "num_positions"), ("rel_bias", "max_distance")])
def test_option_that_needs_too_much_memory(option: tuple[str, str]) -> None:
    """Two thousand million rows are refused before they are allocated."""
    scheme, name = option
    model = MODELS["gpt2"]
    with pytest.raises(errors.OptionOutOfRange, match=f"{name}=2147483647.+GiB"):
        hf_posenc.patch_model(model, scheme, **{name: 2**31 - 1})
    assert not hf_posenc.is_patched(model)
