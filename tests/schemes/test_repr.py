"""A patched model says its options: in the report, and in the representation of its scheme."""

from __future__ import annotations

import copy

from hf_posenc import describe, patch_model, set_factor
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.patching.state import scheme_of


def test_options_that_differ_from_their_defaults_are_shown() -> None:
    model = patch_model(tiny_model("llama"), "yarn+logn", factor=4, beta_fast=16, beta_slow=1)
    lengths = f"trained_length={TRAINED_LENGTH}, target_length={4 * TRAINED_LENGTH}"
    assert describe(model).scheme == "yarn+logn"
    assert str(describe(model)).splitlines()[0].endswith("with yarn(beta_fast=16.0)+logn")
    assert f"Yarn(yarn, factor=4.0, {lengths}, beta_fast=16.0)" in repr(scheme_of(model))
    assert f"LogN(logn, factor=4.0, {lengths})" in repr(scheme_of(copy.deepcopy(model)))
    set_factor(model, 2)
    assert f"factor=2.0, trained_length={TRAINED_LENGTH}, target_length={2 * TRAINED_LENGTH}, beta_fast=16.0" in repr(
        scheme_of(model)
    )


def test_options_of_single_layers_are_shown() -> None:
    model = patch_model(tiny_model("llama"), "yarn", factor=4, layers={"0": ("window", {"size": 8})})
    assert describe(model).layers == {"0": "window(size=8)"}
