"""The plot of a benchmark: lines can be told apart, also where there are more than colours."""

from __future__ import annotations

import pytest

from hf_posenc.core.plotting.figures import COLOURS
from hf_posenc.insight.bench import BenchCell, Measured
from hf_posenc.insight.bench.plots import style_of, write_plot
from hf_posenc.insight.bench.timing import Elapsed


def test_no_two_lines_look_alike() -> None:
    styles = [tuple(style_of(number).items()) for number in range(2 * len(COLOURS))]
    assert len(set(styles)) == len(styles)
    assert len({style[:2] for style in styles}) == len(COLOURS)  # control: by colour and marker alone some would


def test_more_schemes_than_colours_are_drawn(tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plot")
    once = Measured((Elapsed(1.0, 1.0),), 1)
    cells = [
        BenchCell(f"scheme{number}", "prefill", length, length, "done", {"patched": once, "unpatched": once})
        for number in range(len(COLOURS) + 2)
        for length in (8, 16)
    ]
    assert write_plot(cells, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
