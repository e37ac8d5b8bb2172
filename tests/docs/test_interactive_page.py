"""The page's JavaScript, taken from the written page and run by node, computes what the package computes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc.insight.plots import Shapes, codes, numbers

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
    from hf_posenc.schemes.bias.alibi import code_slopes

    answer = answers["alibi", setting]
    slopes = torch.tensor(code_slopes(SETTINGS[setting]["heads"]), dtype=torch.float64)
    near(answer["biases"], -slopes[:, None] * torch.arange(answer["length"]))


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
