"""``hf-posenc cite`` and ``info --latex``: what goes into a paper."""

from __future__ import annotations

from collections.abc import Callable

from hf_posenc import cite, list_schemes


def test_cite_writes_bibtex(call: Callable) -> None:
    assert call("cite", "yarn", "alibi").out == cite("yarn", "alibi") + "\n"
    assert call("cite").out == cite() + "\n"


def test_cite_as_json_has_an_entry_for_each_name(call: Callable) -> None:
    names = [record.name for record in list_schemes()]
    found = call("cite", *names, "--json").data
    assert list(found) == names
    assert found["rerope"] == cite("rerope")  # its title is Chinese


def test_info_writes_the_formula_for_latex(call: Callable) -> None:
    assert call("info", "pi", "--latex").out.splitlines()[:2] == [r"\[", r"\begin{aligned}"]
    assert r"\omega'_m" in call("info", "pi", "--json").data["formula"]
