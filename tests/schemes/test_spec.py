"""Parsing of scheme specifications."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.core.geometry import Geometry, HostRotary, Rotation
from hf_posenc.errors import CannotCombine, OptionOutOfRange, UnknownScheme
from hf_posenc.schemes.bias.alibi import ALiBi
from hf_posenc.schemes.build import build
from hf_posenc.schemes.host_rotation import HostRotation
from hf_posenc.schemes.spec import layer_numbers, layout, plan

ROTARY = HostRotary(Rotation((1.0, 0.1)), base=100.0)


def geometry(*, rotary: HostRotary | None = None, causal: bool = True, target: int = 32) -> Geometry:
    return Geometry(
        heads=4, kv_heads=2, head_dim=4, width=16, layers=3, causal=causal, trained_length=8, target_length=target,
        rotary=rotary,
    )  # fmt: skip


@pytest.mark.parametrize(
    "spec",
    ["yarn+logn", ["yarn", "logn"], [("yarn", {}), "logn"], "yarn + logn", ["yarn+logn"], ("yarn+logn", {})],
    ids=repr,
)
def test_ways_of_writing_a_composition(spec: object) -> None:
    assert plan(spec).name == "yarn+logn"  # type: ignore[arg-type]


def test_class_and_alias_are_names() -> None:
    assert plan(ALiBi).parts == plan("alibi").parts == plan("linear_bias").parts


def test_option_goes_to_the_part_that_takes_it() -> None:
    chosen = plan("yarn+rerope", {"window": 3, "beta_fast": 16.0})
    assert plan(("yarn+rerope", {"window": 3, "beta_fast": 16.0})) == chosen
    assert [options for _, options in chosen.parts] == [{"beta_fast": 16.0}, {"window": 3}]


def test_plan_survives_its_json() -> None:
    chosen = plan("yarn+rerope", {"window": 3, "truncate": False})
    assert plan([(part["name"], part["options"]) for part in chosen.to_json()]) == chosen


def test_option_that_two_parts_take_needs_an_owner() -> None:
    with pytest.raises(CannotCombine, match="Say which"):
        plan("window+window", {"size": 4})


@pytest.mark.parametrize("spec", ["yarn++logn", "+", ["yarn", 3], {"yarn": {}}, ("yarn", "logn", "t6")], ids=repr)
def test_invalid_scheme_entries(spec: object) -> None:
    with pytest.raises(UnknownScheme):
        plan(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["32", None, True, -1.0, 0, float("inf")], ids=repr)
def test_option_outside_its_type_or_range(value: object) -> None:
    with pytest.raises(OptionOutOfRange, match="'beta_fast' of scheme 'yarn'"):
        plan("yarn", {"beta_fast": value})


def test_remap_uses_the_models_rotation() -> None:
    scheme = build(plan("rerope"), geometry(rotary=ROTARY), "llama")
    assert type(scheme.schemes[0]) is HostRotation
    assert scheme.rotation() == ROTARY.rotation


def test_rotation_replaces_the_models() -> None:
    scheme = build(plan("rope", {"base": 7.0}), geometry(rotary=ROTARY), "llama")
    assert scheme.schemes == [scheme]
    assert scheme.rotation() == Rotation((1.0, 7.0**-0.5))


@given(st.integers(1, 40), st.integers(-5, 45), st.integers(-5, 45), st.integers(1, 5))
def test_layer_slices_are_pythons(count: int, start: int, stop: int, step: int) -> None:
    assert list(layer_numbers(f"{start}:{stop}:{step}", count)) == list(range(count))[start:stop:step]


@given(st.integers(1, 40), st.integers(0, 60))
def test_layer_numbers_stay_within(count: int, number: int) -> None:
    assert list(layer_numbers(str(number), count)) == ([number] if number < count else [])


@pytest.mark.parametrize("key", ["x", "1:2:3:4", "1.5", "1-2"])
def test_invalid_layer_key(key: str) -> None:
    with pytest.raises(OptionOutOfRange, match="layer number or a slice"):
        layer_numbers(key, 4)


def test_layers_name_their_plans() -> None:
    chosen = layout("yarn", {}, {"1::2": "none"}, 4)
    assert [chosen.plan_of(layer, 4).name for layer in range(4)] == ["yarn", "none", "yarn", "none"]
