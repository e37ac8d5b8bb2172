"""The checks on a user's own model, and on a third party's scheme."""

from __future__ import annotations

import pytest
import torch

from hf_posenc import checks
from hf_posenc.checks import CHECKS, Case
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, traces
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.core.context import PositionContext
from hf_posenc.core.record import SchemeRecord
from hf_posenc.core.terms import ToeplitzBias
from hf_posenc.errors import AlreadyPatched, LengthContradiction, SchemeNotDefined
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.base import Scheme

from .controls import StaleDynamicNTK


class Hyperbolic(Scheme):
    """A third party's scheme, never registered: a bias of −log(1 + distance)."""

    record = SchemeRecord("hyperbolic")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda d: -d.abs().float().log1p().expand(heads, *d.shape))


@pytest.mark.parametrize("model", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("check", CHECKS)
def test_third_party_scheme_gets_every_law_for_one_line(check: str, model: str) -> None:
    checks.assert_passes(check, Case(model, Hyperbolic, factor=4))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "bert_decoder"])
def test_check_measures_what_applies_and_restores_the_model(name: str) -> None:
    model = tiny_model(name).train()
    before = traces(model, random_tokens(model, TRAINED_LENGTH))
    seen: list[str] = []
    gaps = checks.check_scheme(model, "alibi", factor=8, progress=seen.append)
    expected = [check.name for check in checks.applicable_checks(Case(name, "alibi"))]
    assert [gap.check for gap in gaps] == seen == expected
    assert not [str(gap) for gap in gaps if gap.failed]
    assert all(gap.repeat.startswith("hf-posenc check --model") for gap in gaps)
    assert differences(before, traces(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


def test_check_makes_no_copy_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_posenc.checks.run.SMALL", 1000)
    seen = {gap.check for gap in checks.check_scheme(tiny_model("llama"), "alibi", factor=8)}
    assert seen == {check.name for check in checks.applicable_checks(Case("llama", "alibi"), copies=False)}
    on_copies = {"deepcopy", "saving", "checkpointing", "adapters", "compiled", "cast", "offload"}
    graphs = {"exported", "scripted", "lengths"}
    assert set(CHECKS) - seen == {*on_copies, *graphs, "native"}


def test_check_finds_a_broken_scheme() -> None:
    broken = {gap.check for gap in checks.check_scheme(tiny_model("llama"), StaleDynamicNTK, factor=4) if gap.failed}
    assert {"cache", "batch"} <= broken
    assert "unpatch" not in broken


class Stumbling(Hyperbolic):
    """Raises where it is asked for a single row."""

    record = SchemeRecord("stumbling")

    def bias(self, ctx: PositionContext) -> ToeplitzBias | None:
        return super().bias(ctx) if ctx.query_positions[0, 1] >= 0 else None


def test_a_law_during_which_a_scheme_raises_is_broken() -> None:
    gaps = {gap.check: gap for gap in checks.check_scheme(tiny_model("llama"), Stumbling, factor=4)}
    assert {"cache", "beams", "generation"} <= {name for name, gap in gaps.items() if gap.failed}
    assert "IndexError" in gaps["cache"].where
    assert not gaps["shift"].failed


def test_check_measures_a_base_model_by_its_hidden_states() -> None:
    gaps = checks.check_scheme(tiny_model("bert").bert, "rope", factor=2)
    assert not [str(gap) for gap in gaps if gap.failed]


def test_check_measures_low_precision_by_its_own_limits() -> None:
    gaps = checks.check_scheme(tiny_model("llama").to(torch.bfloat16), "yarn", factor=4)
    assert not [str(gap) for gap in gaps if gap.failed]


def test_check_refuses_what_a_patch_refuses() -> None:
    with pytest.raises(SchemeNotDefined):
        checks.check_scheme(tiny_model("bert"), "self_extend")
    with pytest.raises(LengthContradiction):
        checks.check_scheme(tiny_model("llama"), "yarn", factor=0.5)
    with pytest.raises(AlreadyPatched):
        checks.check_scheme(patch_model(tiny_model("llama"), "yarn", factor=2), "pi", factor=2)
