"""``hf-posenc check``: exit codes, lengths, where a check raised, and bugs in the schemes of third parties."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hf_posenc import checks, describe, patch_model
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.extend import PositionContext, Scheme, ToeplitzBias, register_scheme
from hf_posenc.schemes import registry

from .conftest import Call

CHECK = ("check", "-m", "starter:llama", "-s", "rerope")


@pytest.mark.parametrize(("value", "code"), [(1e-6, 0), (1e-2, 4), (float("nan"), 4)])
def test_it_exits_with_4_if_a_check_fails(call: Call, monkeypatch: pytest.MonkeyPatch, value: float, code: int) -> None:
    found = [checks.Deviation("cache", one, 1e-4, "token 7", "hf-posenc check …") for one in (0.0, value)]
    monkeypatch.setattr(checks, "check_scheme", lambda *_, **__: found)
    assert call(*CHECK, "-f", "4").code == code
    answer = call(*CHECK, "-f", "4", "--json")
    assert answer.code == code
    assert [row["failed"] for row in answer.data] == [False, code == 4]


def test_a_folder_s_own_scheme_is_checked_with_its_options_and_lengths(call: Call, tmp_path: Path) -> None:
    model = patch_model(tiny_model("llama"), "rerope+logn", factor=4, window=5)
    model.save_pretrained(tmp_path)
    trained = describe(model).trained_length
    answer = call("check", "-m", str(tmp_path), "--checks", "cache", "--json")
    assert answer.code == 0, answer.err
    (row,) = answer.data
    assert "rerope+logn" in row["where"]
    assert all(f"{word}" in row["command"] for word in ("window=5", f"target_length={4 * trained}"))
    assert call("check", "-m", "starter:llama").code == 2


class RandomSlope(Scheme):
    """A bias of a third party, with another slope in every forward pass: it cannot be repeated."""

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, 0.1 + float(torch.rand(()))
        return ToeplitzBias(lambda d: -slope * d.abs().float().expand(heads, *d.shape))


def test_a_bug_in_somebody_s_scheme_is_found_and_named(call: Call, tmp_path: Path) -> None:
    """More of them: tests/checks/test_negative_controls.py."""
    tiny_model("llama").save_pretrained(tmp_path)
    register_scheme("planted")(RandomSlope)
    try:
        only = ("--checks", "stateless,second_patch")
        answer = call("check", "-m", str(tmp_path), "-s", "planted", "-f", "4", "--json", *only)
    finally:
        registry._SCHEMES.pop("planted")
        registry._CLASSES.pop("planted", None)
    assert answer.code == 4, answer.err
    assert {row["check"] for row in answer.data if row["failed"]} == {"stateless"}
