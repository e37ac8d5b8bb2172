"""Numbers at the axes of the interactive page are round, and inside the range that is shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from interactive.script import FOLDER, joined

from .test_formulas import NODE, run

pytestmark = pytest.mark.skipif(NODE is None, reason="node, which runs the page's JavaScript, is not on this machine")
SCRIPT = """
const ranges = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(ranges.map(([low, high]) => roundSteps(low, high))));
"""


def test_steps_are_round_and_inside() -> None:
    random = np.random.default_rng(0)
    lows, spans = random.normal(scale=100, size=200), 10 ** random.uniform(-5, 6, size=200)
    ranges = [[0, 1], [-127, 3], [0, 255], *([low, low + span] for low, span in zip(lows, spans, strict=True))]
    for (low, high), steps in zip(ranges, run(joined([FOLDER / "round_steps.js"]) + SCRIPT, ranges), strict=True):
        slack = 1e-9 * max(abs(low), abs(high))
        assert 3 <= len(steps) <= 9
        assert low - slack <= min(steps)
        assert max(steps) <= high + slack
        apart = np.diff(steps)
        assert np.allclose(apart, apart[0], rtol=1e-5)
        leading = float(apart[0]) / 10 ** math.floor(math.log10(float(apart[0]) * (1 + 1e-6)))
        assert min(abs(leading - n) for n in (1, 2, 5)) < 1e-3
