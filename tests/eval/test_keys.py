"""The key of a cell follows what its scheme computes: an edited formula, a changed constant, a default spelled out."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc import patch_model, unpatch_model
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.source_digest import source_digest
from hf_posenc.eval import compare
from hf_posenc.eval.comparison import measure
from hf_posenc.eval.comparison.identity import rounded, terms_digest
from hf_posenc.schemes import registry
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.entry import Entry

from .conftest import TRAINED, measuring

OWN = """
from hf_posenc.extend import Scheme, ToeplitzBias, register_scheme
from . import helpers
TABLE = [{constant}]

@register_scheme("own_for_keys", zero_shot=True)
class Own(Scheme):
    def bias(self, ctx):
        return ToeplitzBias(lambda distance: {formula})
"""
HELPERS = "def far(distance): return distance.float().expand(4, *distance.shape) * {factor}\n"
FORMULA = "-0.5 * TABLE[0] * helpers.far(distance)"
Edit = Callable[..., type]


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Write a scheme of one's own into a package of its own, and import it as a new process would."""
    monkeypatch.setattr(registry, "_SCHEMES", dict(registry._SCHEMES))
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()

    def edited(formula: str = FORMULA, factor: str = "1.0", constant: str = "1.0") -> type:
        (tmp_path / "own_package" / "helpers.py").write_text(HELPERS.format(factor=factor))
        (tmp_path / "own_package" / "scheme.py").write_text(OWN.format(formula=formula, constant=constant))
        for name in [name for name in sys.modules if name.startswith("own_package")]:
            del sys.modules[name]
        return import_module("own_package.scheme").Own

    return edited


def geometry(trained: int = 64, target: int = 256) -> Geometry:
    return Geometry(4, 4, 8, 32, 2, True, trained, target)


def terms(cls: type, **options: Any) -> str:
    return terms_digest([cls(geometry(), **options)])


@pytest.mark.slow
def test_an_edited_scheme_never_shows_the_old_number(edit: Edit, llama, tokenizer, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    seen: list[str] = []
    evaluate = measure.evaluation_of
    monkeypatch.setattr(measure, "evaluation_of", lambda *given: seen.append(given[-1]) or evaluate(*given))

    def loss() -> float:
        found = compare(
            llama, "own_for_keys", tokenizer=tokenizer, out=tmp_path / "out", lengths=[TRAINED], tasks=["posenc_ppl"],
            samples=1, scored=16,
        )  # fmt: skip
        return next(row.value for row in found.rows if row.metric == "nll")

    edit()
    first = loss()
    assert loss() == first
    assert len(seen) == 1
    edit("-2 * helpers.far(distance)")
    assert loss() != first
    assert len(seen) == 2
    edit()  # taken back: the stored number is found again
    assert loss() == first
    assert len(seen) == 2


def test_without_the_digests_the_old_number_would_be_shown(edit: Edit, llama) -> None:
    """Control: the keys of the edited scheme differ by the digests alone."""
    found = []
    for formula in (FORMULA, "-2 * helpers.far(distance)"):
        edit(formula)
        found.append(measuring(llama).cell(Entry("own_for_keys", "own_for_keys"), "posenc_ppl", (TRAINED,)))
    first, other = found
    assert first.key != other.key
    assert {name for name, value in first.settings.items() if other.settings[name] != value} == {"source", "terms"}


@pytest.mark.parametrize(
    ("edited", "terms_differ"),
    [
        ({"formula": "-2 * helpers.far(distance)"}, True),
        ({"factor": "3.0"}, True),  # in another file of the package
        ({"constant": "2.0"}, True),
        ({"formula": "helpers.far(distance) * -0.5 * TABLE[0]"}, False),  # computes the same
    ],
    ids=str,
)
def test_an_edit_is_seen_in_source_and_terms(edit: Edit, edited: dict[str, str], terms_differ: bool) -> None:
    first = edit()
    digests = source_digest(first), terms(first)
    other = edit(**edited)
    assert source_digest(other) not in (None, digests[0])
    assert (terms(other) != digests[1]) == terms_differ
    assert source_digest(first) == digests[0]  # of the class in memory, whatever its file holds now


def test_a_table_changed_at_run_time_is_seen_in_the_terms(edit: Edit) -> None:
    cls = edit()
    before = terms(cls)
    sys.modules["own_package.scheme"].TABLE[0] = 2.0
    assert terms(cls) != before


def test_a_class_without_source_is_never_found_again(llama) -> None:
    made = types.ModuleType("made_by_exec")
    exec("from hf_posenc.extend import Scheme\nclass Made(Scheme): pass", vars(made))
    from hf_posenc.eval.comparison.cell import sources_of

    assert source_digest(made.Made) is None
    assert sources_of([made.Made]) != sources_of([made.Made])


def test_noise_of_the_last_digits_changes_nothing() -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    noisy = torch.nextafter(values, torch.tensor(2.0))
    assert sum(a != b for a, b in zip(rounded(values), rounded(noisy), strict=True)) <= 1
    assert rounded(torch.tensor([1.0, 1e-9, -torch.inf])) == rounded(torch.tensor([1.0, -3e-8, -torch.inf]))
    assert rounded(torch.tensor([1.0])) != rounded(torch.tensor([1.001]))  # control


def test_terms_are_those_of_the_patched_model(llama) -> None:
    """The schemes that a key is made of are those that patching puts in."""
    own = measuring(llama, longest=4 * TRAINED)
    for name in ("yarn", "rerope", "dynamic_ntk", "alibi"):
        entry = Entry(name, name)
        key = terms_digest(own.layer_schemes(entry)[:1])
        patch_model(llama, name, target_length=4 * TRAINED)
        part = next(module for module in llama.modules() if isinstance(module, Scheme))
        assert terms_digest([part]) == key, name
        unpatch_model(llama)


def test_a_carried_scheme_counts(llama) -> None:
    bare = measuring(llama).computes(Entry("unpatched", None))
    patch_model(llama, "yarn", factor=2)
    assert measuring(llama).computes(Entry("unpatched", None)) != bare
