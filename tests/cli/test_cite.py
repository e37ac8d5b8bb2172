"""``hf-posenc info --bibtex`` and ``--properties``."""

from __future__ import annotations

from collections.abc import Callable

from hf_posenc import cite


def test_bibtex_of_a_scheme_and_of_a_composition(call: Callable) -> None:
    for name in ("rerope", "yarn+logn"):  # the title of rerope is Chinese
        assert call("info", name, "--bibtex").out == cite(name) + "\n"


def test_properties_are_measured(call: Callable) -> None:
    found = call("info", "irope", "--properties", "--json").data  # a row for each kind of layer
    assert found["irope (layer 0)"]["relative"]["holds"]
    assert found["irope (layer 3)"]["relative"]["value"] is None
    assert "rope" in call("info", "rope", "--properties").out
