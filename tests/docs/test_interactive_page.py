"""The page's JavaScript, taken from the written page and run by node, computes what the package computes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_posenc.insight.plots import Shapes, codes, numbers

sys.path[:0] = [str(Path(__file__).parents[2] / "docs" / "_ext")]

from interactive import page as pages  # noqa: E402
from interactive.script import FOLDER, formulas, joined, views  # noqa: E402

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
REMAPS = ("rerope", "leaky_rerope", "self_extend", "dca", "sinks", "lm_infinite")
MASKS = ("window", "sinks", "lm_infinite")
CODES = ("integer", "norm01", "binary", "sinusoidal")
OTHERS = ("none", "alibi")

RUN = """
const cases = JSON.parse(require("fs").readFileSync(0));
const answers = cases.map(([name, given]) => {
  const one = fromFormula(name, given), every = Array.from({ length: one.length }, (_, n) => n);
  const queries = every.filter((n) => n % 7 === 0 || n === one.length - 1);
  return {
    length: one.length, score: every.map(one.score), frequencies: one.frequencies ?? null,
    distance: one.distance ? every.map(one.distance) : null, code: one.code ? every.map(one.code) : null,
    biases: one.biases ? one.biases.map((of) => every.map(of)) : null,
    sees: one.sees ? queries.map((i) => every.map((j) => j <= i && one.sees(i, j))) : null,
  };
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


def near(found: Any, wanted: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    got = torch.tensor([[float("nan") if v is None else v for v in row] for row in found], dtype=torch.float64)
    size = max(1.0, float(wanted[wanted.isfinite()].abs().max()))
    assert got.shape == wanted.shape
    assert torch.equal(got.isnan(), wanted.isnan())
    assert float((got - wanted.double()).nan_to_num().abs().max()) <= tolerance * size


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", ROTATING)
def test_frequencies(answers: Any, name: str, setting: str) -> None:
    """Float64 on both sides; the scores are their cosines, and YaRN's square of the temperature."""
    built, lengths = shapes(setting)
    with built.target(name, **lengths) as target:
        found = next(iter(codes.frequencies(target, target.geometry.target_length).values()))
        scale = target.scheme.logit_scale()
    answer = answers[name, setting]
    near([answer["frequencies"]], found[None], 1e-12)
    distance = torch.arange(answer["length"], dtype=torch.float64)
    near([answer["score"]], scale * (distance[:, None] * found).cos().mean(1)[None])


@pytest.mark.parametrize("setting", ["small"])
@pytest.mark.parametrize("name", pages.FORMULAS)
def test_scores_are_those_of_patched_layers(answers: Any, name: str, setting: str) -> None:
    """Layers compute in float32, hence the wider tolerance; the mask is the same."""
    built, lengths = shapes(setting)
    wanted = numbers(name, "score_curve", shapes=built, **lengths)[0].numbers["score"]
    near([answers[name, setting]["score"]], wanted[None], 2e-5)


@pytest.mark.parametrize("setting", ["small"])
@pytest.mark.parametrize("name", REMAPS)
def test_distances(answers: Any, name: str, setting: str) -> None:
    built, lengths = shapes(setting)
    wanted = numbers(name, "distance_curve", shapes=built, **lengths)[0].numbers["used"]
    answer = answers[name, setting]
    used = [d if s is not None else None for d, s in zip(answer["distance"], answer["score"], strict=True)]
    near([used], wanted[None])


@pytest.mark.parametrize("setting", ["small"])
@pytest.mark.parametrize("name", MASKS)
def test_masks(answers: Any, name: str, setting: str) -> None:
    built, lengths = shapes(setting)
    region = numbers(name, "visible", shapes=built, **lengths)[0].numbers["region"]
    rows = [n for n in range(len(region)) if n % 7 == 0 or n == len(region) - 1]
    assert answers[name, setting]["sees"] == (~region.isnan())[rows].tolist()


@pytest.mark.parametrize("setting", ["small"])
@pytest.mark.parametrize("name", CODES)
def test_codes(answers: Any, name: str, setting: str) -> None:
    built, lengths = shapes(setting)
    with built.target(name, **lengths) as target:
        wanted = codes.codes(target, target.geometry.target_length)
    near(answers[name, setting]["code"], wanted)


@pytest.mark.parametrize("setting", SETTINGS)
def test_slopes(answers: Any, setting: str) -> None:
    from hf_posenc.schemes.bias.slopes import code_slopes

    answer = answers["alibi", setting]
    slopes = torch.tensor(code_slopes(SETTINGS[setting]["heads"]), dtype=torch.float64)
    near(answer["biases"], -slopes[:, None] * torch.arange(answer["length"]))


def test_every_formula_is_compared() -> None:
    names = run(formulas() + "\nconsole.log(JSON.stringify(Object.keys(FORMULAS)));")
    assert sorted(names) == sorted(pages.FORMULAS) == sorted({*ROTATING, *REMAPS, *MASKS, *CODES, *OTHERS})


def test_the_shift_matrix_moves_codes() -> None:
    """M_k code(p) = code(p + k), with M_k from the angle-sum identities in float64."""
    base, dims, p, k = 10_000, 16, 37, 11
    found = run(formulas() + f"\nconst given = {{ base: {base}, dims: {dims} }};"
                f"console.log(JSON.stringify(shifted(sinusoidalCode({p}, given), {k}, given)));")  # fmt: skip
    angle = (p + k) * base ** (-2 * torch.arange(dims // 2, dtype=torch.float64) / dims)
    near([found], torch.stack((angle.sin(), angle.cos()), dim=1).flatten()[None], 1e-12)


def test_a_wrong_formula_is_noticed() -> None:
    """Negative control: half of NTK's exponent."""
    planted = formulas().replace("given.factor ** (-m / last)", "given.factor ** (-m / (2 * last))")
    assert planted != formulas()
    answer = run(planted + RUN, [["ntk", SETTINGS["default"]]])[0]
    built, lengths = shapes("default")
    with built.target("ntk", **lengths) as target:
        wanted = next(iter(codes.frequencies(target, 256).values()))
    with pytest.raises(AssertionError):
        near([answer["frequencies"]], wanted[None])


def test_the_address_keeps_the_state() -> None:
    script = (
        formulas()
        + views().partition("// main.js")[0]
        + """
    const start = startState(["rope"]), known = ["rope", "yarn:beta_fast=16", "t5"];
    const state = { ...start, schemes: ["t5", "yarn:beta_fast=16"], factor: 2.5, base: 500000, dims: 32 };
    console.log(JSON.stringify([start, state, fromHash(toHash(state), start, known),
      fromHash("#schemes=%E0%A4%A+nothing&factor=1e9&dims=x&base=-3&position=2.6", start, known)]));
    """
    )
    start, state, again, broken = run(script)
    assert again == state
    assert broken == start | {"factor": 8, "base": 100, "position": 3}


def test_steps_of_axes_are_round_and_inside() -> None:
    random = np.random.default_rng(0)
    lows, spans = random.normal(scale=100, size=200), 10 ** random.uniform(-5, 6, size=200)
    ranges = [[0, 1], [-127, 3], [0, 255], *([low, low + span] for low, span in zip(lows, spans, strict=True))]
    script = """
    const ranges = JSON.parse(require("fs").readFileSync(0));
    console.log(JSON.stringify(ranges.map(([low, high]) => roundSteps(low, high))));
    """
    for (low, high), steps in zip(ranges, run(joined([FOLDER / "round_steps.js"]) + script, ranges), strict=True):
        slack = 1e-9 * max(abs(low), abs(high))
        assert 3 <= len(steps) <= 9
        assert low - slack <= min(steps) <= max(steps) <= high + slack
        assert np.allclose(np.diff(steps), steps[1] - steps[0], rtol=1e-5)


@pytest.mark.slow
def test_the_page_is_one_file_without_anything_from_elsewhere() -> None:
    text = pages.page_html()
    assert len(text.encode()) <= 400_000
    assert "://" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    entries = {entry["label"]: entry for entry in json.loads(found[1])["entries"]}
    assert [name for name, entry in entries.items() if "by_factor" in entry] == list(pages.TABLES)
    assert all(entry["title"] for entry in entries.values())
    examples = {name for _, hash in pages.EXAMPLES for name in re.findall(r"[a-z_0-9]+", hash.split("&")[0])[1:]}
    assert examples <= set(entries)


def test_a_table_holds_what_plots_show() -> None:
    entry = pages.table("t5")
    wanted = numbers("t5", "bias_curve", trained_length=64, factor=4, shapes=Shapes())[0].numbers["bias"]
    assert [one["factor"] for one in entry["by_factor"]] == [1, 2, 4]
    near(entry["by_factor"][-1]["biases"], wanted[: len(entry["by_factor"][-1]["biases"])], 1e-4)
