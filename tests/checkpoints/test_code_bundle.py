"""A checkpoint that brings its code computes the same where this package is not, and is refused where it cannot."""

from __future__ import annotations

import inspect
import json
import shutil
import site
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoConfig, LlamaForCausalLM

from hf_posenc import from_pretrained, is_patched, patch_model, unpatch_model
from hf_posenc.core.source_finder import SourceFinder, install
from hf_posenc.errors import NotExpressible, OptionOutOfRange
from hf_posenc.extend import Scheme, register_scheme
from hf_posenc.patching.code_bundle import CODE, closure, imports_of_text, quote
from hf_posenc.patching.config_guard import GUARD_KEY, MODELING
from hf_posenc.schemes import registry

from ..processes import environment, finish, start
from ..small_models import TRAINED
from .conftest import FACTOR

CASES = [*(("llama", scheme) for scheme in ("yarn", "alibi", "rerope", "t5")), ("gpt2", "fire"), ("bert", "alibi")]
COMMIT = "0123456789" * 4
LENGTHS = (TRAINED // 2, TRAINED, FACTOR * TRAINED)
CHILD = """
import sys

try:
    import hf_posenc
except ImportError:
    pass
else:
    raise SystemExit("control: the package is here")

from pathlib import Path
import torch
import transformers

for folder in sorted(one for one in Path(".").glob("model-*") if one.is_dir()):
    auto = transformers.AutoModelForMaskedLM if "bert" in folder.name else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    want = torch.load(folder.with_suffix(".pt"))
    with torch.no_grad():
        for length, logits in want["logits"].items():
            got = model(want["ids"][:, :length]).logits
            assert (got - logits).abs().max() <= 1e-5, (folder, length)
    if want["generated"] is not None:
        text = model.generate(want["ids"][:1, :20], max_new_tokens=12, do_sample=False)
        assert text.equal(want["generated"]), folder
    again = folder.with_name("again-" + folder.name)
    model.save_pretrained(again)
    for name in ("hf_posenc_code.py", "modeling_hf_posenc.py", "config.json"):
        assert (again / name).read_text() == (folder / name).read_text(), (folder, name)
hub = torch.load("model-llama-yarn.pt")
model = transformers.AutoModelForCausalLM.from_pretrained("ada/long", trust_remote_code=True).eval()
with torch.no_grad():
    assert (model(hub["ids"]).logits - hub["logits"][hub["ids"].shape[1]]).abs().max() <= 1e-5, "from the Hub"
assert "hf_posenc" not in sys.modules
print("all", len(list(Path(".").glob("again-*"))))
"""


@pytest.fixture
def bundles(make_model, perturb, tmp_path: Path) -> Path:
    """A folder of bundles, each with what the patched model computes here."""
    ids = torch.randint(5, 64, (2, FACTOR * TRAINED), generator=torch.Generator().manual_seed(1))
    for kind, scheme in CASES:
        plain, model = make_model(kind), patch_model(make_model(kind), scheme, factor=FACTOR)
        perturb(model)
        plain.load_state_dict(model.state_dict(), strict=False)
        model.save_pretrained(tmp_path / f"model-{kind}-{scheme}", code="bundle")
        with torch.no_grad():
            logits = {length: model(ids[:, :length]).logits for length in LENGTHS}
            assert (plain(ids[:, :TRAINED]).logits - logits[TRAINED]).abs().max() > 1e-3, "control"
            made = None if kind == "bert" else model.generate(ids[:1, :20], max_new_tokens=12, do_sample=False)
        torch.save({"ids": ids, "logits": logits, "generated": made}, tmp_path / f"model-{kind}-{scheme}.pt")
    in_cache = tmp_path / "hub" / "models--ada--long"
    shutil.copytree(tmp_path / "model-llama-yarn", in_cache / "snapshots" / COMMIT)
    (in_cache / "refs").mkdir()
    (in_cache / "refs" / "main").write_text(COMMIT)
    return tmp_path


@pytest.mark.slow
def test_the_same_logits_and_texts_in_an_environment_without_the_package(bundles: Path) -> None:
    """At three lengths, with and without a cache, from a folder and as transformers fetches files from the Hub.

    What is saved there is the same checkpoint again. Everything else that is installed here is linked into it.
    """
    venv.create(bundles / "env", with_pip=False)
    (there,) = (bundles / "env").glob("lib/*/site-packages")
    for folder in dict.fromkeys([*site.getsitepackages(), *(one for one in sys.path if one.endswith("-packages"))]):
        for entry in Path(folder).glob("*"):
            own = "posenc" in entry.name.lower() or entry.suffix == ".pth"
            if not own and not (there / entry.name).exists():
                (there / entry.name).symlink_to(entry)
    env = environment(HF_MODULES_CACHE=str(bundles / "code"), HF_HUB_CACHE=str(bundles / "hub"))
    python = str(bundles / "env" / "bin" / "python")
    out = finish(start(["-I", "-c", CHILD], python=python, env=env, cwd=bundles))
    assert out.strip().endswith(f"all {len(CASES)}")


@pytest.mark.slow
def test_with_the_package_it_is_a_checkpoint_as_any_other(make_model, logits_of, tmp_path: Path) -> None:
    """None of its code is run, and what is saved without ``code`` brings none."""
    model = patch_model(make_model("llama"), "yarn", factor=FACTOR)
    model.save_pretrained(tmp_path / "bundle", code="bundle")
    before = set(sys.modules)
    loaded = from_pretrained(tmp_path / "bundle")
    assert torch.equal(logits_of(loaded), logits_of(model))
    new = set(sys.modules) - before
    assert not any(name.startswith("transformers_modules") and MODELING in name for name in new)
    loaded.save_pretrained(tmp_path / "plain")
    content = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert "auto_map" not in content
    assert GUARD_KEY in content
    unpatch_model(loaded).save_pretrained(tmp_path / "unpatched")
    assert "auto_map" not in (tmp_path / "unpatched" / "config.json").read_text()
    assert not is_patched(LlamaForCausalLM.from_pretrained(tmp_path / "unpatched"))


def test_without_trust_nothing_is_run_and_nothing_loads(make_model, tmp_path: Path) -> None:
    patch_model(make_model("llama"), "alibi", factor=FACTOR).save_pretrained(tmp_path, code="bundle")
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    with pytest.raises(Exception, match="pip install hf_posenc"):
        LlamaForCausalLM.from_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    assert "trust_remote_code=True" in (tmp_path / "README.md").read_text()
    assert "Apache License" in (tmp_path / f"{CODE}.py").read_text()


@pytest.mark.parametrize("what", ["scheme", "model", "quantised", "peft"])
def test_what_cannot_be_bundled_is_refused_and_nothing_is_written(
    what: str, make_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("_SCHEMES", "_CLASSES"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))

    @register_scheme("of_a_notebook")
    class Own(Scheme):
        """No position at all."""

        replaces_host = True

    class OwnModel(LlamaForCausalLM):
        """A class that only this file has."""

    model = make_model("llama")
    if what == "model":
        model.__class__ = OwnModel
    patch_model(model, "of_a_notebook" if what == "scheme" else "yarn", factor=FACTOR if what != "scheme" else None)
    if what == "quantised":
        monkeypatch.setattr(type(model), "is_quantized", True, raising=False)
    if what == "peft":
        inject_adapter_in_model(LoraConfig(target_modules=["q_proj"]), model)
    with pytest.raises(NotExpressible):
        model.save_pretrained(tmp_path / "out", code="bundle")
    assert not (tmp_path / "out").exists()


def test_another_kind_of_code_is_refused(make_model, tmp_path: Path) -> None:
    model = patch_model(make_model("gpt2"), "alibi", factor=FACTOR)
    with pytest.raises(OptionOutOfRange, match="'zip'"):
        model.save_pretrained(tmp_path / "out", code="zip")
    with pytest.raises(NotExpressible, match="push_to_hub"):
        model.save_pretrained(tmp_path / "out", code="bundle", push_to_hub=True)


def test_a_package_is_imported_from_texts_beside_the_installed_one() -> None:
    texts = {
        "": "",
        "inner": "",
        "inner.one": "from hf_posenc.inner.two import DOUBLE\n\n\ndef four():\n    return 2 * DOUBLE\n",
        "inner.two": 'TEXT = """\nimport hf_posenc\n"""\nDOUBLE = 2\n',
    }
    package = install(texts)
    try:
        assert install(texts) == package
        one = __import__(f"{package}.inner.one", fromlist=["four"])
        assert one.four() == 4
        assert inspect.getsource(one.four) == "def four():\n    return 2 * DOUBLE\n"
        assert "import hf_posenc" in sys.modules[f"{package}.inner.two"].TEXT
        with pytest.raises(ModuleNotFoundError):
            __import__(f"{package}.inner.three")
    finally:
        sys.meta_path[:] = [one for one in sys.meta_path if getattr(one, "package", None) != package]
    assert SourceFinder("other", texts).find_spec("hf_posenc.inner.one") is None


def test_modules_that_type_checkers_alone_import_are_left_out() -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hf_posenc.insight import advise\n"
        "def f():\n    from hf_posenc.core import regions\n"
    )
    assert set(imports_of_text(text)) == {"hf_posenc.core", "hf_posenc.core.regions"}
    found = closure(["hf_posenc.schemes.rotary.yarn", "hf_posenc.patches.llama"])
    assert "hf_posenc.schemes.rotary.rotary" in found
    assert not {"hf_posenc.schemes.bias.fire", "hf_posenc.patches.gpt2", "hf_posenc.checkpoints.load"} & found


@pytest.mark.parametrize("text", ["a\\n", "it's", "'''", "end'", "end\\", '"""x"""', "naïve ω"])
def test_a_text_is_quoted_as_it_is(text: str) -> None:
    space = SimpleNamespace()
    exec(f"value = {quote(text)}", vars(space))
    assert space.value == text
