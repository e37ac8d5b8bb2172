"""``hf-posenc check``: exit codes, lengths, and where a check raised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_posenc import checks

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


@pytest.mark.parametrize(("written", "tokens"), [("1024", 1024), ("0.5K", 512), ("1,024", 1024), ("1m", 1024**2)])
def test_lengths_may_be_written_in_thousands(
    call: Call, monkeypatch: pytest.MonkeyPatch, written: str, tokens: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(checks, "check_scheme", lambda *_, **given: asked.append(given["target_length"]) or [])
    assert call(*CHECK, "--target-length", written).code == 0
    assert asked == [tokens]


def broken(case: checks.Case) -> checks.Deviation:
    raise RuntimeError("the flux is off")


@pytest.mark.parametrize("debug", [False, True])
def test_debug_shows_where_a_check_raised(call: Call, monkeypatch: pytest.MonkeyPatch, debug: bool) -> None:
    """The other checks are measured, and the table and the exit code are the same."""
    monkeypatch.setitem(checks.CHECKS, "cache", replace(checks.CHECKS["cache"], function=broken))
    words = ("check", "-m", "starter:llama", "-s", "yarn", "-f", "2", "--check", "cache", "--check", "second_patch")
    answer = call(*words, "--json", *["--debug"] * debug)
    assert answer.code == 4
    assert [(row["check"], row["failed"]) for row in answer.data] == [("cache", True), ("second_patch", False)]
    assert "RuntimeError: the flux is off" in answer.data[0]["where"]
    assert ("in broken" in answer.err) == debug


@pytest.mark.slow
def test_every_check_of_a_live_model(call: Call) -> None:
    answer = call(*CHECK, "-f", "4", "--json")
    assert answer.code == 0, answer.out
    assert {"cache", "batch", "effect"} <= {row["check"] for row in answer.data}
