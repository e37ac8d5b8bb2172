"""What a search says in words of its choice: nothing of what was not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hf_posenc.eval.results.paired import Difference, Verdict
from hf_posenc.insight.search.result import SearchResult, verdicts
from hf_posenc.insight.search.trial import HeldOut, Trial
from hf_posenc.schemes.entry import Entry

DEFAULT, OTHER = Entry("rerope", "rerope"), Entry("rerope:window=96", "rerope", {"window": 96})


def line(label: str, verdict: Verdict | None = None) -> HeldOut:
    """A line of the held-out table; without a verdict, one without a difference."""
    found = verdict and Difference(
        "choice", label, "posenc_ppl", "nll", None, 0.1, 0.01, 0.08, 0.12, 9, 9, 0.001, 0.002, verdict
    )
    return HeldOut(label, 2.0, 0.1, 9, found or None)


def trial(entry: Entry) -> Trial:
    """An arm that was measured."""
    return Trial(entry.label, str(entry.scheme), entry.options, not entry.options, False, "measured", loss=2.0)


def said(choice: Entry, *held_out: HeldOut, tried: tuple[Entry, ...] = (DEFAULT,)) -> str:
    """The verdicts on a choice."""
    about: dict[str, Any] = {"plan": {"held_out": 9}}
    return " ".join(verdicts(SearchResult(about, tuple(map(trial, tried)), choice, "rerope", held_out)))


def test_a_choice_that_was_compared_with_nothing_is_not_called_better() -> None:
    found = said(DEFAULT, line("rerope"), HeldOut("yarn", note="Refused."), line("unpatched", "better"))
    assert "compared with none" in found
    assert "Only arms with default options were tried" in found
    assert "clearly better" not in found


def test_other_options_are_mentioned_where_they_were_tried() -> None:
    found = said(DEFAULT, line("rerope"), line("yarn", "undecided"), tried=(DEFAULT, OTHER))
    assert "no other options were clearly better" in found
    assert "Defaults compared there: 1; surely better than the choice: none." in found


def test_defaults_that_are_surely_better_are_named() -> None:
    lines = line("window", "worse"), line("yarn", "better"), line("unpatched", "better")
    assert "Defaults compared there: 2; surely better than the choice: window." in said(DEFAULT, line("rerope"), *lines)


def test_too_few_documents_are_not_called_evidence() -> None:
    """Of two documents there is no interval, so that nothing could be found better."""
    few = [untested(line(label, "undecided")) for label in ("rerope", "yarn")]
    assert "fewer than 3 documents show none" in said(DEFAULT, line("rerope"), few[1])
    found = said(OTHER, line(OTHER.label), *few, tried=(DEFAULT, OTHER))
    assert "best default, rerope: +0.100, on too few documents" in found
    assert "not surely different" not in found


def untested(of: HeldOut) -> HeldOut:
    """A difference on two documents."""
    assert of.difference is not None
    return replace(of, difference=replace(of.difference, n=2, clusters=2, low=None, high=None, p=None, p_holm=None))


def test_the_best_default_is_compared_only_where_it_was_measured() -> None:
    own, tried = line(OTHER.label), (DEFAULT, OTHER)
    assert "surely better than the best default, rerope: +0.100" in said(
        OTHER, own, line("rerope", "better"), tried=tried
    )
    found = said(OTHER, own, HeldOut("rerope", note="Refused."), tried=tried)
    assert "The best default could not be measured" in found
    assert "are kept" not in found


def test_a_choice_without_a_loss_says_why() -> None:
    assert said(DEFAULT, HeldOut("rerope", note="Out of memory.")).endswith("held-out text. Out of memory.")
