"""`check_scheme` on live models, and all checks on a third-party scheme."""

from __future__ import annotations

from unittest import SkipTest

import pytest
import torch
from transformers import BertPreTrainedModel

from hf_posenc import checks, load_starter
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.record import SchemeRecord
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import UnknownCheck
from hf_posenc.schemes.base import Scheme

from .wrong_schemes import StaleDynamicNTK


class Hyperbolic(Scheme):
    """An unregistered third-party scheme: a bias of −log(1 + distance)."""

    record = SchemeRecord("hyperbolic")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -d.abs().float().log1p().expand(heads, *d.shape))


def test_a_check_that_does_not_apply_is_skipped_and_not_passed() -> None:
    """In an encoder, what is after a token is meant to have an effect."""
    with pytest.raises(SkipTest, match=r"Check causality does not apply to bert-alibi"):
        checks.assert_passes("causality", Case("bert", "alibi"))
    checks.assert_passes("causality", Case("gpt2", "alibi"))


@pytest.mark.parametrize("scheme", ["window", "dynamic_ntk", "logn"])
def test_a_patch_without_a_factor_is_an_identity_up_to_its_target_length(scheme: str) -> None:
    checks.assert_passes("identity", Case("llama", scheme))


def test_memory_of_a_model_without_sdpa_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {check.name for check in checks.applicable_checks(Case("bert", "alibi"))}
    monkeypatch.setattr(BertPreTrainedModel, "_supports_sdpa", False)
    assert measured - {check.name for check in checks.applicable_checks(Case("bert", "alibi"))} >= {"memory_growth"}


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("check", CHECKS)
def test_every_check_of_a_third_party_scheme(check: str, model: str) -> None:
    checks.assert_passes(check, Case(model, Hyperbolic, factor=4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_applicable_checks_are_measured_and_the_model_is_restored(name: str) -> None:
    model = tiny_model(name).train()
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    progress: list[str] = []
    deviations = checks.check_scheme(model, "alibi", factor=8, progress=progress.append)
    expected = [check.name for check in checks.applicable_checks(Case(name, "alibi"))]
    assert [deviation.check for deviation in deviations] == progress == expected
    assert not [str(deviation) for deviation in deviations if deviation.failed]
    assert all(deviation.command.startswith("hf-posenc check --model") for deviation in deviations)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.slow
def test_a_wrong_scheme_fails() -> None:
    failed = {one.check for one in checks.check_scheme(tiny_model("llama"), StaleDynamicNTK, factor=4) if one.failed}
    assert {"cache", "batch"} <= failed
    assert "unpatch" not in failed


class FailsOnOneQuery(Hyperbolic):
    """Raises an IndexError for a single query."""

    record = SchemeRecord("fails_on_one_query")

    def bias(self, ctx: PositionContext) -> ToeplitzBias | None:
        return super().bias(ctx) if ctx.query_positions[0, 1] >= 0 else None


@pytest.mark.slow
def test_a_check_fails_if_the_scheme_raises() -> None:
    deviations = {one.check: one for one in checks.check_scheme(tiny_model("llama"), FailsOnOneQuery, factor=4)}
    assert {"cache", "cache_reorder", "padded_decoding"} <= {name for name, one in deviations.items() if one.failed}
    assert "IndexError" in deviations["cache"].where
    assert "in bias" in deviations["cache"].traceback
    assert deviations["shift"].traceback == ""
    assert not deviations["shift"].failed


@pytest.mark.slow
def test_low_precision_has_its_own_tolerances() -> None:
    deviations = checks.check_scheme(tiny_model("llama").to(torch.bfloat16), "yarn", factor=4)
    assert not [str(deviation) for deviation in deviations if deviation.failed]


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(UnknownCheck, match="Did you mean 'cache'"):
        checks.check_scheme(tiny_model("llama"), "yarn", checks=["cahce"])


def test_position_ids_hold_in_a_table_of_the_trained_length() -> None:
    (found,) = checks.check_scheme(load_starter("gpt2")[0], "learned_interp", checks=["position_ids"])
    assert not found.failed, found.where
