"""A name that a later release of another package renames is refused in one sentence, wherever it is met first."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from hf_posenc import enable_auto, patch_model
from hf_posenc.checkpoints import peft_methods
from hf_posenc.checkpoints.auto import auto_enabled
from hf_posenc.core import tested_versions
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import HostChanged, MissingPackage, UntestedVersion

from ..small_models import llama

BOUNDS = ["transformers>=5.4,<5.25", "peft>=0.18,<0.22", "lm-eval[hf]>=0.4.13,<0.5", "accelerate>=1.3,<2"]


@pytest.mark.parametrize("code", ["from transformers.cache_utils import Gone", "import transformers.gone"])
def test_lost_names_of_every_form(code: str) -> None:
    with pytest.raises(HostChanged, match=r"transformers \S+ lacks"), explained_imports():
        exec(code, {})


@pytest.mark.parametrize("code", ["import gone", "[].gone", "from math import gone"])
def test_other_errors_stay_as_they_are(code: str) -> None:
    with pytest.raises((ImportError, AttributeError)) as raised, explained_imports():
        exec(code, {})
    assert not isinstance(raised.value, MissingPackage)


@pytest.mark.parametrize(("package", "extra"), [("peft", "train"), ("lm_eval", "eval")])
def test_a_package_that_is_absent(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(MissingPackage, match=rf"hf-posenc\[{extra}\]"),
        explained_imports(),
    ):
        exec(f"import {package}", {})


@pytest.mark.parametrize("name", ["_from_config", "from_pretrained"])
def test_auto_classes_stay_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PreTrainedModel, name)
    before = dict(vars(transformers.PreTrainedModel))
    with pytest.raises(HostChanged, match=f"PreTrainedModel.{name}"):
        enable_auto()
    assert dict(vars(transformers.PreTrainedModel)) == before
    assert not auto_enabled()


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """PEFT lacks a method that is hooked."""
    pytest.importorskip("peft")
    monkeypatch.setattr(peft_methods, "METHODS", {"peft:PeftModel.gone": "saving", "peft.gone:load": "loading_into"})
    monkeypatch.setattr(peft_methods, "lacking", [])
    peft_methods.install()
    return peft_methods.lacking


def test_peft_without_a_hooked_method_refuses_patched_models_only(lacking: list[str]) -> None:
    import peft

    from hf_posenc import get_peft_model

    assert lacking == ["peft:PeftModel.gone", "peft.gone:load"]
    config = peft.LoraConfig(target_modules=["q_proj"])
    plain = peft.get_peft_model(llama(), config)
    assert torch.isfinite(plain(torch.arange(4)[None]).logits).all()
    patched = patch_model(llama(), "yarn", factor=2)
    for wrap in (peft.get_peft_model, get_peft_model):
        with pytest.raises(HostChanged, match=r"peft \S+ lacks peft\.PeftModel\.gone and peft\.gone\.load"):
            wrap(patched, config)


@pytest.fixture
def much_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each package is of a later release than the bounds of pyproject.toml."""
    monkeypatch.setattr(tested_versions, "version", lambda package: "99.0")
    monkeypatch.setattr(tested_versions, "requires", lambda package: BOUNDS)
    tested_versions.beyond_tested.cache_clear()
    tested_versions.tested_versions.cache_clear()
    yield
    tested_versions.beyond_tested.cache_clear()
    tested_versions.tested_versions.cache_clear()


def about(found: list[warnings.WarningMessage], package: str) -> list[str]:
    """The warnings of one package's version."""
    said = [str(one.message) for one in found if issubclass(one.category, UntestedVersion)]
    return [one for one in said if f"and {package} 99.0" in one]


@pytest.mark.usefixtures("much_later")
def test_an_untested_peft_is_warned_of_once_where_it_meets_a_patched_model() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        peft.get_peft_model(llama(), config)
        assert not about(found, "peft")
        for _ in range(2):
            peft.get_peft_model(patch_model(llama(), "yarn", factor=2), config)
    assert len(about(found, "peft")) == 1
    assert "<0.22" in about(found, "peft")[0]
    assert len(about(found, "transformers")) == 1


def test_bounds_are_those_of_pyproject() -> None:
    tomllib = pytest.importorskip("tomllib", reason="in the standard library from Python 3.11")
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {*BOUNDS} <= {*project["dependencies"], *extras["train"], *extras["eval"]}
