"""The scheme config of a checkpoint is validated field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hf_posenc import from_pretrained, patch_model
from hf_posenc.errors import CheckpointMismatch
from hf_posenc.patching.scheme_config import SchemeConfig

GOOD: dict[str, Any] = {
    "format": 1,
    "scheme": [{"name": "yarn", "options": {"beta_fast": 16.0}}, {"name": "logn", "options": {}}],
    "layers": {"1": [{"name": "pi", "options": {}}]},
    "trained_length": 16,
    "target_length": 64,
    "host_length": 16,
}
DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]

DAMAGE = {
    "no object": "yarn",
    "newer format": {**GOOD, "format": 2},
    "no format": {k: v for k, v in GOOD.items() if k != "format"},
    "format true": {**GOOD, "format": True},
    "unknown key": {**GOOD, "shceme": []},
    "missing key": {k: v for k, v in GOOD.items() if k != "host_length"},
    "unknown scheme": {**GOOD, "scheme": [{"name": "yarm", "options": {}}]},
    "a path for a name": {**GOOD, "scheme": [{"name": "../../etc/passwd", "options": {}}]},
    "a module for a name": {**GOOD, "scheme": [{"name": "os:system", "options": {}}]},
    "a number for a name": {**GOOD, "scheme": [{"name": 3, "options": {}}]},
    "no part": {**GOOD, "scheme": []},
    "too many parts": {**GOOD, "scheme": [{"name": "logn", "options": {}}] * 17},
    "extra key in a part": {**GOOD, "scheme": [{"name": "yarn", "options": {}, "class": "os"}]},
    "unknown option": {**GOOD, "scheme": [{"name": "yarn", "options": {"beta": 1, "x": 2}}]},
    "option out of range": {**GOOD, "scheme": [{"name": "yarn", "options": {"beta_fast": -1.0}}]},
    "option not finite": {**GOOD, "scheme": [{"name": "yarn", "options": {"beta_fast": float("nan")}}]},
    "options no object": {**GOOD, "scheme": [{"name": "yarn", "options": [1]}]},
    "deeply nested": {**GOOD, "scheme": DEEP},
    "layers no object": {**GOOD, "layers": [1]},
    "length a float": {**GOOD, "target_length": 64.0},
    "length zero": {**GOOD, "host_length": 0},
    "length true": {**GOOD, "trained_length": True},
    "target under trained": {**GOOD, "target_length": 8},
}


@pytest.mark.parametrize("value", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_error_of_two_sentences(value) -> None:
    with pytest.raises(CheckpointMismatch) as caught:
        SchemeConfig.read(value, "here")
    assert str(caught.value).count(". ") == 1, caught.value
    assert len(str(caught.value)) < 500


def test_a_valid_scheme_config_is_read_and_written_unchanged() -> None:
    assert SchemeConfig.read(GOOD, "here").to_json() == GOOD


@given(
    field=some.sampled_from(sorted(GOOD)),
    value=some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
        lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_nothing_but_our_own_error_escapes(field: str, value: Any) -> None:
    try:
        read = SchemeConfig.read({**GOOD, field: value}, "here")
    except CheckpointMismatch:
        return
    assert SchemeConfig.read(read.to_json(), "here") == read


def test_scheme_configs_that_do_not_fit_the_model(make_model, tmp_path) -> None:
    """Well-formed, but for another model: a scheme that needs a rotation, a layer that is not there."""
    patch_model(make_model("bert"), "alibi", factor=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in (
        {"scheme": [{"name": "rerope", "options": {}}]},
        {"layers": {"7": [{"name": "alibi", "options": {}}]}},
    ):
        damaged = {**config, "position_scheme": {**config["position_scheme"], **change}}
        (tmp_path / "config.json").write_text(json.dumps(damaged))
        with pytest.raises(CheckpointMismatch, match="does not fit its BertForMaskedLM"):
            from_pretrained(tmp_path)
