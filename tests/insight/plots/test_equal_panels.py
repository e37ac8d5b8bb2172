"""Panels that show the same are drawn once, and those that differ are not."""

from __future__ import annotations

import torch

from hf_posenc.insight.plots.equal_panels import drawn_once
from hf_posenc.insight.plots.marks import labelled
from hf_posenc.insight.plots.registry import Sheet

MAP = torch.tensor([[0.0, float("nan")], [1.0, 2.0]])


def labels(sheets: list[Sheet]) -> list[str]:
    return [labelled(sheet) for sheet in drawn_once(sheets)]


def test_equal_schemes_are_one_panel_with_both_names() -> None:
    other = Sheet("pi", {"distance": MAP + 1})
    assert labels([Sheet("rope", {"distance": MAP}), other, Sheet("yarn", {"distance": MAP.clone()})]) == [
        "rope, yarn",
        "pi",
    ]


def test_equal_heads_are_a_range() -> None:
    heads = [Sheet("alibi", {"head": n, "bias": MAP}) for n in range(4)]
    assert labels(heads) == ["alibi, heads 0–3"]
    other = Sheet("alibi", {"head": 1, "bias": 2 * MAP})
    assert labels([heads[0], other, heads[2]]) == ["alibi, heads 0, 2", "alibi, head 1"]
