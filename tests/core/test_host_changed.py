"""A name that a later release of another package renames is refused in one sentence; other errors are told apart."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel

from hf_posenc import enable_auto, patch_model
from hf_posenc.checkpoints import peft_methods
from hf_posenc.checkpoints.auto import auto_enabled
from hf_posenc.core import tested_versions
from hf_posenc.core.files.hf_errors import explanation
from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import AdapterInvalid, CheckpointMismatch, HostChanged, MissingPackage, NoMemory, UntestedVersion
from hf_posenc.forward import host_calls
from hf_posenc.forward.host_calls import cache_argument, cache_in_output

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

    assert lacking == ["peft:PeftModel.gone", "peft.gone:load"]
    config = peft.LoraConfig(target_modules=["q_proj"])
    plain = peft.get_peft_model(llama(), config)
    assert torch.isfinite(plain(torch.arange(4)[None]).logits).all()
    patched = patch_model(llama(), "yarn", factor=2)
    with pytest.raises(HostChanged, match=r"peft \S+ lacks peft\.PeftModel\.gone and peft\.gone\.load"):
        peft.get_peft_model(patched, config)


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
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {*BOUNDS} <= {*project["dependencies"], *extras["train"], *extras["eval"]}


FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", FULL, ids=["gpu", "python", "cpu"])
def test_memory_that_is_full_is_no_damaged_checkpoint(error: Exception) -> None:
    assert isinstance(explanation(error, "."), NoMemory)
    assert isinstance(explanation(RuntimeError("corrupt"), "."), CheckpointMismatch), "control"


PACKAGES = ("hf_posenc", "hf_posenc.extend", "hf_posenc.eval")


@pytest.mark.parametrize("package", PACKAGES)
def test_names_that_load_lazily_are_those_of_type_checkers(package: str) -> None:
    module = import_module(package)
    assert f"import {module.__all__[0]} as" in Path(str(module.__file__)).read_text(encoding="utf-8")
    assert all(hasattr(module, name) for name in module.__all__)


TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


class RenamedModel(LlamaModel):
    """Takes its KV cache under a name that no release has."""

    def forward(
        self, input_ids: Any = None, kv: Any = None, position_ids: Any = None, use_cache: bool = False, **call: Any
    ) -> Any:
        if use_cache and kv is None:
            kv = DynamicCache(config=self.config)
        given = {"use_cache": use_cache, "position_ids": position_ids, **cache_argument(LlamaModel, kv)}
        return super().forward(input_ids, **given, **call)


class StrictModel(LlamaModel):
    """Takes no keywords of callers."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, use_cache: bool = False) -> Any:
        return super().forward(input_ids, position_ids=position_ids, use_cache=use_cache)


@pytest.mark.parametrize("cls", [RenamedModel, StrictModel])
def test_a_model_that_would_forget_is_refused(cls: type[LlamaModel]) -> None:
    model = cls(LlamaConfig(**TINY))
    with pytest.raises((HostChanged, AdapterInvalid), match=cls.__name__):
        patch_model(model, "yarn", factor=2)
    assert type(model.layers[0].self_attn).__name__ == "LlamaAttention"  # the model is as it was


def test_unknown_names_of_the_cache_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patch_model(LlamaForCausalLM(LlamaConfig(**TINY)), "yarn", factor=2)
    monkeypatch.setattr(host_calls, "CACHE_NAMES", ("memory",))
    with pytest.raises(HostChanged, match="known name"):
        model(torch.arange(4)[None], use_cache=True)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_callers_may_use_either_name(name: str) -> None:
    """Cached equals uncached, whatever a caller of the base model calls the cache."""
    model = patch_model(LlamaModel(LlamaConfig(**TINY)), "yarn", factor=2).eval()
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        whole, cache = model(ids).last_hidden_state, DynamicCache()
        model(ids[:, :6], use_cache=True, **{name: cache})
        out = model(ids[:, 6:], use_cache=True, **{name: cache})
    assert cache_in_output(out) is cache
    torch.testing.assert_close(out.last_hidden_state, whole[:, 6:], atol=1e-5, rtol=0)
