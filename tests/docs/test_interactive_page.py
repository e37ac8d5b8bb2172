"""The page's JavaScript, taken from the written page and run by node, computes what the package computes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc.insight.plots import Shapes, codes, numbers
from hf_posenc.schemes.entry import Entry

sys.path[:0] = [str(Path(__file__).parents[2] / "docs" / "_ext")]

from interactive import page as pages  # noqa: E402
from interactive.script import formulas  # noqa: E402

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node, which runs the page's JavaScript, is not on this machine")

TOLERANCE = 1e-6
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"base": 10_000, "dims": 64, "trained": 64, "factor": 4, "heads": 8},
    "small": {"base": 10_000, "dims": 10, "trained": 24, "factor": 1.5, "heads": 6},
    "at the trained length": {"base": 10_000, "dims": 32, "trained": 128, "factor": 1, "heads": 12},
    "long": {"base": 10_000, "dims": 128, "trained": 256, "factor": 8, "heads": 16},
}
ROTATING = ("rope", "abf", "pi", "ntk", "ntk_parts", "yarn", "llama3")

RUN = """
const cases = JSON.parse(require("fs").readFileSync(0));
const answers = cases.map(([name, given]) => {
  const one = fromFormula(name, given), every = Array.from({ length: one.length }, (_, n) => n);
  return { length: one.length, score: every.map(one.score), frequencies: one.frequencies ?? null };
});
console.log(JSON.stringify(answers));
"""


def run(script: str, given: Any = None) -> Any:
    """What a script prints, as JSON."""
    assert NODE is not None
    done = subprocess.run(
        [NODE, "-e", f'"use strict";{script}'], input=json.dumps(given), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, str], Any]:
    """What the page computes, of every scheme at every setting."""
    cases = [(name, setting) for name in pages.FORMULAS for setting in SETTINGS]
    found = run(formulas() + RUN, [[name, SETTINGS[setting]] for name, setting in cases])
    return dict(zip(cases, found, strict=True))


def shapes(setting: str) -> tuple[Shapes, dict[str, Any]]:
    given = SETTINGS[setting]
    dims = given["dims"]
    return Shapes(heads=given["heads"], head_dim=dims, width=dims), {
        "trained_length": given["trained"], "factor": float(given["factor"]),
    }  # fmt: skip


def gap(found: Any, wanted: torch.Tensor) -> float:
    """Largest difference in units of the largest number; infinite where shapes or gaps differ."""
    got = torch.tensor([[float("nan") if v is None else v for v in row] for row in found], dtype=torch.float64)
    if got.shape != wanted.shape or not torch.equal(got.isnan(), wanted.isnan()):
        return float("inf")
    size = max(1.0, float(wanted[wanted.isfinite()].abs().max()))
    return float((got - wanted.double()).nan_to_num().abs().max()) / size


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ROTATING)
def test_frequencies(answers: Any, name: str, setting: str) -> None:
    """Float64 on both sides; the scores are their cosines, and YaRN's square of the temperature."""
    built, lengths = shapes(setting)
    with built.target(Entry(name, name), lengths) as target:
        found = next(iter(codes.frequencies(target, target.geometry.target_length).values()))
        scale = target.scheme.logit_scale()
    answer = answers[name, setting]
    assert gap([answer["frequencies"]], found[None]) <= 1e-12
    distance = torch.arange(answer["length"], dtype=torch.float64)
    assert gap([answer["score"]], scale * (distance[:, None] * found).cos().mean(1)[None]) <= TOLERANCE


@pytest.mark.parametrize("name", pages.FORMULAS)
def test_scores_are_those_of_patched_layers(answers: Any, name: str) -> None:
    """Layers compute in float32, hence the wider tolerance; the mask is the same."""
    built, lengths = shapes("small")
    wanted = numbers(name, "score_curve", shapes=built, **lengths)[0].numbers["score"]
    assert gap([answers[name, "small"]["score"]], wanted[None]) <= 2e-5


def test_a_wrong_formula_is_noticed() -> None:
    """Negative control: half of NTK's exponent."""
    planted = formulas().replace("given.factor ** (-m / last)", "given.factor ** (-m / (2 * last))")
    assert planted != formulas()
    answer = run(planted + RUN, [["ntk", SETTINGS["default"]]])[0]
    built, lengths = shapes("default")
    with built.target(Entry("ntk", "ntk"), lengths) as target:
        wanted = next(iter(codes.frequencies(target, 256).values()))
    with pytest.raises(AssertionError):
        assert gap([answer["frequencies"]], wanted[None]) <= TOLERANCE
