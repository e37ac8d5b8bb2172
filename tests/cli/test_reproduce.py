"""``hf-posenc reproduce``: the list, one finding, and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_posenc.eval.errors import NotMeasurable
from hf_posenc.insight.findings import all_findings


def test_findings_are_listed(call: Callable) -> None:
    assert {row["name"] for row in call("reproduce", "--list", "--json").data} == set(all_findings())
    assert "arXiv:2309.00071" in call("reproduce", "--list").out


def test_refusals_end_with_2(call: Callable) -> None:
    answer = call("reproduce", "rotation_pair")
    assert answer.code == 2
    assert "Did you mean 'rotation_pairs'?" in answer.err
    assert call("reproduce").code == 2
    assert call("reproduce", "rotation_pairs", "--all").code == 2
    assert call("reproduce", "rotation_pairs", "--list").code == 2
    for words in (("--quick",), ("--out", "x"), ("-m", "x"), ("--text", "x"), ("--seeds", "3"), ("--samples", "3")):
        answer = call("reproduce", "--list", *words)
        assert (answer.code, answer.out) == (2, "")
        assert "has no effect beside --list" in answer.err


@pytest.mark.parametrize("kind", [NotMeasurable, RuntimeError])
def test_a_finding_that_fails_does_not_take_the_others_with_it(
    call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """Whether it is refused in words or ends in an error of torch."""
    from hf_posenc.insight import findings

    run = findings.reproduce

    def one_fails(name: str, **given: object) -> object:
        if name == "pose":
            raise kind("There is no memory left. Take a smaller model.")
        return run(name, **given)

    monkeypatch.setattr(findings, "reproduce", one_fails)
    answer = call("reproduce", "pose", "rotation_pairs", "--quick", "--out", str(tmp_path))
    assert answer.code == 3
    assert "Verdict: " in answer.out
    assert re.search(r"^Error: pose: .*There is no memory left", answer.err, re.MULTILINE)
    assert "in one_fails" not in answer.err
    assert (
        "in one_fails" in call("reproduce", "pose", "rotation_pairs", "--quick", "--out", str(tmp_path), "--debug").err
    )
    answer = call("reproduce", "pose", "--quick", "--out", str(tmp_path / "alone"))
    assert (answer.code, answer.out) == (1, "")


def test_a_finding_prints_its_claims_and_its_verdict(call: Callable, tmp_path: Path) -> None:
    words = "reproduce", "rotation_pairs", "--quick", "--out", str(tmp_path)
    answer = call(*words)
    assert answer.code == 0, answer.err
    stored = json.loads((tmp_path / "finding.json").read_text())
    assert f"Verdict: {stored['verdict']}, quick budget" in answer.out
    assert stored["claims"][0]["says"] in answer.out
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()}
    assert call(*words, "--json").data["claims"] == stored["claims"]
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cells").iterdir()} == before
