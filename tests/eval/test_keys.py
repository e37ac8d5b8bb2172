"""The key of a cell follows what its scheme computes: an edited formula, a changed constant, a default spelled out."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc.core.code_digest import code_digest
from hf_posenc.core.geometry import Geometry
from hf_posenc.eval.comparison.cell import MeasurementRequest
from hf_posenc.eval.comparison.fitting import Fitting
from hf_posenc.eval.comparison.identity import files_digest
from hf_posenc.eval.comparison.terms_digest import rounded, terms_digest
from hf_posenc.schemes.entry import Entry, entries_of
from hf_posenc.schemes.registry import scheme_class

from .conftest import TRAINED

OWN = """
from hf_posenc.extend import Scheme, ToeplitzBias
from . import helpers
{constant}

class Own(Scheme):
    def __init__(self, geometry, *, slope: float = 0.5) -> None:
        super().__init__(geometry)
        self.slope = slope

    def bias(self, ctx):
        return ToeplitzBias(lambda distance: {formula})

    def unrelated(self):
        return TABLE
"""
HELPERS = "def far(distance): return distance.float().expand(4, *distance.shape) * {factor}\n"
FORMULA = "-self.slope * helpers.far(distance)"


def own_class(formula: str = FORMULA, factor: str = "1.0", constant: str = "TABLE = [1.0]") -> type:
    """A scheme of one's own in a package of its own, as it is after its files were edited."""
    package, helpers, module = (types.ModuleType(name) for name in ("own", "own.helpers", "own.scheme"))
    package.__path__ = []
    sys.modules |= {"own": package, "own.helpers": helpers, "own.scheme": module}
    package.helpers = helpers
    module.__package__ = "own"
    exec(HELPERS.format(factor=factor), vars(helpers))
    exec(OWN.format(formula=formula, constant=constant), vars(module))
    return module.Own


def geometry(trained: int = 64, target: int = 256) -> Geometry:
    return Geometry(4, 4, 8, 32, 2, True, trained, target)


def both(cls: type, **options: Any) -> tuple[str, str]:
    return code_digest([cls]), terms_digest([cls(geometry(), **options)])


def test_an_edited_formula_is_seen_in_code_and_terms() -> None:
    first = both(own_class())
    assert both(own_class()) == first
    edited = both(own_class("-2 * self.slope * helpers.far(distance)"))
    assert edited[0] != first[0]
    assert edited[1] != first[1]
    helper = both(own_class(factor="3.0"))  # in another file of the package
    assert helper[0] != first[0]
    assert helper[1] != first[1]
    assert both(own_class()) == first  # taken back


def test_code_that_computes_the_same_is_other_code() -> None:
    first, other = both(own_class()), both(own_class("helpers.far(distance) * -self.slope"))
    assert other[0] != first[0]
    assert other[1] == first[1]


def test_a_table_is_seen_in_the_terms() -> None:
    formula = "-TABLE[0] * helpers.far(distance)"
    first, other = both(own_class(formula)), both(own_class(formula, constant="TABLE = [2.0]"))
    assert other[0] == first[0]  # a list may be a cache that fills up
    assert other[1] != first[1]


def test_options_and_lengths_are_seen_in_the_terms() -> None:
    cls = scheme_class("yarn")
    found = {
        terms_digest([cls(geometry())]), terms_digest([cls(geometry(), beta_slow=2.0)]),
        terms_digest([cls(geometry(target=512))]), terms_digest([cls(geometry(trained=32))]),
    }  # fmt: skip
    assert len(found) == 4
    assert terms_digest([cls(geometry(), beta_slow=1.0)]) in found


def test_noise_of_the_last_digits_changes_nothing() -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    noisy = torch.nextafter(values, torch.tensor(2.0))
    assert sum(a != b for a, b in zip(rounded(values), rounded(noisy), strict=True)) <= 1
    assert rounded(torch.tensor([1.0, 1e-9, -torch.inf])) == rounded(torch.tensor([1.0, -3e-8, -torch.inf]))
    assert rounded(torch.tensor([1.0])) != rounded(torch.tensor([1.001]))  # control


def test_the_digest_of_code_is_the_same_in_every_process() -> None:
    """Sets are in another order in each, by the seed of their hashes."""
    program = (
        "from hf_posenc.core.code_digest import code_digest\n"
        "from hf_posenc.schemes.registry import scheme_class, scheme_names\n"
        "print([code_digest([scheme_class(name)]) for name in ('yarn', 'fire', 'self_extend', 't5', 'dynamic_ntk')])"
    ).replace(", scheme_names", "")
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(set(eval(found.pop()))) == 5


def lm_of(model: Any) -> Any:
    return types.SimpleNamespace(model=model, report={})


@pytest.fixture
def request_on(llama) -> MeasurementRequest:
    fitting = Fitting.on(lm_of(llama), 0)
    return MeasurementRequest({"seed": 0}, 8 * TRAINED, True, {}, {}, fit=fitting.fit, computes=fitting.computes)


def test_a_default_spelled_out_is_the_same_cell(request_on) -> None:
    def key(words: str) -> str:
        return request_on.cell(entries_of(words)[0], "posenc_ppl", (2 * TRAINED,)).key

    assert key("yarn") == key("yarn:beta_fast=32") == key("yarn:beta_fast=32.0,truncate=true")
    assert key("yarn") != key("yarn:beta_fast=31")
    assert key("dynamic_ntk") == key(f"dynamic_ntk:multiplier=2,granularity={TRAINED // 4}")
    assert key("dynamic_ntk") != key("dynamic_ntk:multiplier=1")
    assert key("yarn:factor=4") == key("yarn:factor=4.0")
    assert len({key(words) for words in ("unpatched", "rope", "pi", "self_extend", "fire")}) == 5


def test_terms_are_those_of_the_patched_model(llama) -> None:
    """The schemes that a key is made of are those that patching puts in."""
    from hf_posenc import patch_model
    from hf_posenc.schemes.base import Scheme

    fitting = Fitting.on(lm_of(llama), 0)
    for name in ("yarn", "rerope", "dynamic_ntk", "alibi"):
        entry = Entry(name, name)
        key = terms_digest(fitting.built(entry, 4 * TRAINED)[:1])
        patch_model(llama, name, target_length=4 * TRAINED)
        part = next(module for module in llama.modules() if isinstance(module, Scheme))
        assert terms_digest([part]) == key, name
        __import__("hf_posenc").unpatch_model(llama)


def test_a_carried_scheme_counts(llama) -> None:
    from hf_posenc import patch_model

    bare = Fitting.on(lm_of(llama), 0).computes(Entry("unpatched", None), TRAINED)
    patch_model(llama, "yarn", factor=2)
    assert Fitting.on(lm_of(llama), 0).computes(Entry("unpatched", None), TRAINED) != bare


def test_dynamic_ntk_takes_the_factor(llama) -> None:
    """As in transformers' ``dynamic``: base · (f L / L0 − (f − 1))^(d / (d − 2))."""
    fitting = Fitting.on(lm_of(llama), 0)
    entry = fitting.fit(Entry("dynamic_ntk", "dynamic_ntk"), 8 * TRAINED)
    assert entry.options == {"granularity": TRAINED // 4, "multiplier": 8.0}
    scheme = fitting.built(entry, 8 * TRAINED)[0]
    d, f, base = llama.config.head_dim, 8.0, llama.config.rope_parameters["rope_theta"]
    stretched = base * (f * 8 - (f - 1)) ** (d / (d - 2))
    found = scheme.row_rotation().rotation_of(8 * TRAINED).frequencies
    assert found == pytest.approx([stretched ** (-2 * m / d) for m in range(d // 2)], rel=1e-9)
    kept = fitting.fit(Entry("x", "dynamic_ntk", {"multiplier": 1.0}), 8 * TRAINED)
    assert kept.options["multiplier"] == 1.0  # the user's own stays


def test_task_files_outside_the_results(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("1")
    before = files_digest(tmp_path, (".yml", ".json"), without=tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text("2")
    assert files_digest(tmp_path, (".yml", ".json"), without=tmp_path / "out") == before
    (tmp_path / "data.json").write_text("2")
    assert files_digest(tmp_path, (".yml", ".json"), without=tmp_path / "out") != before
