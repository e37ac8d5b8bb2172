"""An earlier benchmark: what counts as a change, what was different then, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_posenc.errors import OptionOutOfRange
from hf_posenc.insight.bench import BenchCell, Change, Earlier, Measured
from hf_posenc.insight.bench.busy import busy_remark, waiting
from hf_posenc.insight.bench.report import to_dict
from hf_posenc.insight.bench.timing import Elapsed, Ratio

ABOUT = {"model": "m", "dtype": "float32", "threads": 1, "device": "cpu", "versions": {"torch": "2.13.0"}}


def cell(scheme: str, ratios: list[float], wall: float = 1.0) -> BenchCell:
    """A cell whose scheme takes these multiples of a second; the unpatched model takes one."""
    models = {
        "unpatched": Measured(tuple(Elapsed(wall, 1.0) for _ in ratios)),
        "patched": Measured(tuple(Elapsed(wall * r, r) for r in ratios)),
    }
    return BenchCell(scheme, "prefill", 64, 64, "done", models)


def written(folder: Path, cells: list[BenchCell], about: dict) -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps(to_dict(cells, about)))
    return path


def test_a_change_is_told_from_noise(tmp_path: Path) -> None:
    before = [cell("yarn", [1.00, 1.01, 1.02]), cell("alibi", [1.0, 1.2, 1.4]), cell("t5", [2.0, 2.1, 2.2])]
    earlier = Earlier.read(written(tmp_path, before, ABOUT))
    now = [cell("yarn", [1.10, 1.11, 1.12]), cell("alibi", [1.1, 1.3, 1.5]), cell("t5", [1.0, 1.1, 1.2])]
    found = earlier.changes([*now, cell("rope", [1.0])])
    assert [(c.scheme, c.verdict) for c in found] == [("yarn", "slower"), ("alibi", "same"), ("t5", "faster")]
    assert found[0].change == pytest.approx(1.11 / 1.01)
    assert Earlier.read(tmp_path).ratios == earlier.ratios


positive = st.floats(0.1, 10)


@given(st.lists(positive, min_size=3, max_size=3), st.lists(positive, min_size=3, max_size=3))
def test_exchanging_the_runs_exchanges_the_verdict(first: list[float], second: list[float]) -> None:
    a, b = (Ratio(*(sorted(values)[i] for i in (1, 0, 2))) for values in (first, second))
    opposite = {"slower": "faster", "faster": "slower", "same": "same"}
    assert Change("s", "c", 1, b, a).verdict == opposite[Change("s", "c", 1, a, b).verdict]
    assert Change("s", "c", 1, a, a).verdict == "same"


def test_other_settings_are_named(tmp_path: Path) -> None:
    earlier = Earlier.read(written(tmp_path, [cell("yarn", [1.0])], ABOUT | {"threads": 2}))
    assert earlier.other_settings(ABOUT) == ["threads: 2 then, 1 now"]
    assert Earlier.read(written(tmp_path, [cell("yarn", [1.0])], ABOUT)).other_settings(ABOUT) == []


OTHER = ("", "[]", "{}", '{"cells": [{}]}', '{"cells": []}', '{"cells": 1}', '{"cells": [{"over": {"unpatched": 1}}]}')


@pytest.mark.parametrize("content", OTHER)
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "bench.json").write_text(content)
    with pytest.raises(OptionOutOfRange, match=r"bench\.json"):
        Earlier.read(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionOutOfRange, match="--out"):
        Earlier.read(tmp_path / "absent.json")


def test_a_shared_processor_is_noticed() -> None:
    idle, busy = [cell("yarn", [1.0, 1.0], wall=1.01)], [cell("yarn", [1.0, 1.0], wall=1.6)]
    assert waiting(busy) == pytest.approx(1.6)
    assert busy_remark(idle, 1, "cpu") == []
    assert "1.60 times" in busy_remark(busy, 1, "cpu")[0]
    assert busy_remark(busy, 2, "cpu") == busy_remark(busy, 1, "cuda") == busy_remark([], 1, "cpu") == []


def test_the_run_that_is_kept_with_the_pages_can_be_compared_with() -> None:
    kept = Earlier.read(Path(__file__).parents[3] / "docs" / "bench")
    assert {case for _, case, _ in kept.ratios} == {"prefill", "decode", "train"}
    assert {length for _, _, length in kept.ratios} == {512, 2048}
    assert "--out docs/bench" in kept.about["command"]
