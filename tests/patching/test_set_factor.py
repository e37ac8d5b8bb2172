"""`set_factor` equals patching anew, with what was learned kept; a scheme set aside for a while comes back whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, StaticCache

import hf_posenc
from hf_posenc import (
    describe,
    errors,
    from_pretrained,
    is_patched,
    list_schemes,
    load_starter,
    patch_model,
    set_factor,
    unpatch_model,
)
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.checks.tolerances import LOGITS
from hf_posenc.patching.patch import scheme_set_aside
from hf_posenc.schemes.rotary.yarn import Yarn

from ..families.tiny import tiny, tiny_encoder_decoder

LENGTH = 3 * TRAINED_LENGTH
COMPOSED = ["yarn+logn", "host+yarn", "pi+self_extend", "yarn+ssmax", "rope+t5"]
SCHEMES = [*(record.name for record in list_schemes()), *COMPOSED]
ONE_A_HOOK = {"yarn", "dynamic_ntk", "self_extend", "alibi", "fox", "shaw", "logn", "window", "sinks", *COMPOSED}
WITH_A_TABLE = {"learned", "learned_hier", "learned_interp"}  # of the target length, or of the model itself
ALL = [
    pytest.param(name, marks=() if name in ONE_A_HOOK else pytest.mark.slow)
    for name in sorted({*SCHEMES} - WITH_A_TABLE)
]


def logits(model: Any, ids: torch.Tensor, **call: Any) -> torch.Tensor:
    torch.manual_seed(0)  # of schemes that draw positions
    with torch.no_grad():
        return model(ids, **call).logits


def patched(kind: str, scheme: Any, factor: float, **options: Any) -> Any:
    torch.manual_seed(1)
    return patch_model(tiny_model(kind), scheme, factor=factor, **options).eval()


def stated(model: Any) -> tuple[Any, ...]:
    config, report = model.config, describe(model)
    return config.position_scheme, config.max_position_embeddings, report.target_length, report.proof.verdict


@pytest.mark.parametrize("scheme", ALL)
def test_equals_a_patch_with_that_factor(scheme: str) -> None:
    """Bit-equal, up and down again; a scheme shared by all layers and one for each."""
    model, ids = patched("llama", scheme, 4), random_tokens(tiny_model("llama"), LENGTH)
    first = logits(model, ids)
    assert set_factor(model, 2) is model
    fresh = patched("llama", scheme, 2)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(logits(model, ids), logits(fresh, ids))
    assert stated(model) == stated(fresh)
    assert torch.equal(logits(set_factor(model, 4), ids), first)


@pytest.mark.parametrize(("kind", "scheme"), [("gpt2", "yarn"), ("bert", "rope+rerope"), ("bert", "dynamic_yarn")])
def test_models_with_a_table(kind: str, scheme: str) -> None:
    model, ids = patched(kind, scheme, 4), random_tokens(tiny_model(kind), LENGTH)
    assert torch.equal(logits(set_factor(model, 3), ids), logits(patched(kind, scheme, 3), ids))


IDENTITIES = {
    "llama": [
        "cape", "dynamic_yarn", "host", "llama3", "logn", "longrope", "ntk", "pi", "rope", "self_extend", "yarn"
    ],
    "gpt2": ["learned_hier", "learned_interp"],
    "bert": ["learned_hier", "learned_interp"],
}  # fmt: skip


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("kind", "scheme"), [(kind, scheme) for kind, some in IDENTITIES.items() for scheme in some])
def test_factor_1_is_the_unpatched_model(kind: str, scheme: str, attention: str) -> None:
    """Bit for bit with a table; with a rotation up to rounding, as angles are float32 in transformers alone."""
    stock = tiny_model(kind).eval()
    stock.set_attn_implementation(attention)
    ids = random_tokens(stock, TRAINED_LENGTH)
    expected = logits(stock, ids)
    model = patch_model(stock, scheme, factor=4)
    found = logits(set_factor(model, 1), ids)
    assert describe(model).proof.verdict == "identity"
    if kind == "llama":
        assert (found - expected).abs().max() <= LOGITS[expected.dtype]
    else:
        assert torch.equal(found, expected)
    anew = patched(kind, scheme, 1)
    anew.set_attn_implementation(attention)
    assert torch.equal(found, logits(anew, ids))
    assert torch.equal(logits(unpatch_model(model), ids), expected)
    assert model.config.max_position_embeddings == TRAINED_LENGTH  # also where a configuration has another name for it


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "gpt_oss"])
def test_families_of_the_general_adapter(family: str) -> None:
    """Layers with windows keep their own positions."""
    ids = torch.arange(3, 90)[None]
    model = set_factor(patch_model(tiny(family), "host+yarn", factor=4), 2)
    expected = patch_model(tiny(family), "host+yarn", factor=2)
    assert torch.equal(logits(model, ids), logits(expected, ids))
    assert stated(model) == stated(expected)


@pytest.mark.parametrize("family", ["t5", "mpnet"])
def test_a_bias_that_the_model_keeps_is_no_part_of_the_scheme(family: str) -> None:
    """Its module became one at the first change: weights were saved twice, and a second change was refused."""
    model = tiny_encoder_decoder(family).get_decoder() if family == "t5" else tiny(family, masked=True)
    names = list(patch_model(model, "window", factor=4, trained_length=24).state_dict())
    assert list(set_factor(set_factor(model, 2), 4).state_dict()) == names


@pytest.mark.parametrize("saved", [None, ["posenc"]])
def test_under_peft(saved: list[str] | None) -> None:
    """LoRA, and a learned scheme that PEFT trains a copy of."""
    ids, found = random_tokens(tiny_model("llama"), LENGTH), []
    for factor in (4, 2):
        model = patched("llama", "yarn+t5", factor)
        config = LoraConfig(target_modules=["q_proj"], modules_to_save=saved)
        torch.manual_seed(0)
        found.append(get_peft_model(model, config).eval())
    set_factor(found[0], 2)
    assert torch.equal(logits(found[0], ids), logits(found[1], ids))
    factors = [module.geometry.factor for module in found[0].modules() if isinstance(module, Yarn)]
    assert factors == [2.0] * len(factors)
    assert len(factors) == (2 if saved else 1)


def test_learned_parameters_are_the_same_objects() -> None:
    model = patched("llama", "yarn+ssmax", 4)
    learned = dict(model.named_parameters())
    perturb_parameters(model)
    values = {name: weight.clone() for name, weight in learned.items()}
    set_factor(model, 2)
    now = dict(model.named_parameters())
    assert now.keys() == learned.keys()
    assert all(now[name] is weight and torch.equal(weight, values[name]) for name, weight in learned.items())


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheme", ["yarn", "dynamic_yarn", "alibi"])
def test_a_cache_made_under_another_factor_is_refused(scheme: str, *, compiled: bool) -> None:
    model, ids = patched("llama", scheme, 4), random_tokens(tiny_model("llama"), 12)
    cache = StaticCache(config=model.config, max_cache_len=32) if compiled else DynamicCache(config=model.config)
    reader = torch.compile(model, backend="eager") if compiled else model
    logits(reader, ids, past_key_values=cache)
    set_factor(model, 2)
    with pytest.raises(errors.InvalidInput, match="under another scheme"):
        logits(reader, ids[:, :1], past_key_values=cache)
    set_factor(model, 4)
    logits(reader, ids[:, :1], past_key_values=cache)  # the factor that it was made under


def test_save_and_load(tmp_path: Path) -> None:
    model, ids = patched("llama", "yarn", 4), random_tokens(tiny_model("llama"), LENGTH)
    set_factor(model, 2).save_pretrained(tmp_path)
    loaded = hf_posenc.from_pretrained(tmp_path)
    assert describe(loaded).factor == 2
    assert loaded.config.max_position_embeddings == 2 * TRAINED_LENGTH
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert torch.equal(logits(set_factor(loaded, 8), ids), logits(patched("llama", "yarn", 8), ids))


@pytest.mark.parametrize("factor", [0.5, 0, -1, float("nan"), float("inf"), None, "2", True])
def test_wrong_factors_are_refused_and_nothing_changes(factor: Any) -> None:
    model, ids = patched("llama", "yarn", 4), random_tokens(tiny_model("llama"), LENGTH)
    before = logits(model, ids), stated(model)
    with pytest.raises(errors.LengthContradiction, match="factor"):
        set_factor(model, factor)
    assert torch.equal(logits(model, ids), before[0])
    assert stated(model) == before[1]


def test_a_factor_that_the_scheme_cannot_take() -> None:
    """As in `patch_model`: a table ends."""
    model = patched("gpt2", "host", 1)
    with pytest.raises(errors.OptionOutOfRange, match="ends after") as refused:
        set_factor(model, 2)
    with pytest.raises(errors.OptionOutOfRange) as anew:
        patch_model(tiny_model("gpt2"), "host", factor=2)
    assert str(refused.value) == str(anew.value)
    assert describe(model).factor == 1


def test_a_learned_table_of_another_length_is_refused() -> None:
    model = patched("llama", "learned", 4)
    with pytest.raises(errors.OptionOutOfRange, match=r"Call unpatch_model and patch_model"):
        set_factor(model, 2)
    assert describe(model).factor == 4


def test_a_changed_configuration_is_refused() -> None:
    model = patched("llama", "yarn", 4)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 5e5}
    with pytest.raises(errors.HostConfigInvalid):
        set_factor(model, 2)


def test_a_failed_probe_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = patched("llama", "yarn", 4), random_tokens(tiny_model("llama"), LENGTH)
    before = logits(model, ids), stated(model)

    def fails(self: Any) -> None:
        raise errors.NoEffect("It failed. Report it.")

    monkeypatch.setattr("hf_posenc.patching.proof.EffectProbe.verdict", fails)
    with pytest.raises(errors.NoEffect):
        set_factor(model, 2)
    assert torch.equal(logits(model, ids), before[0])
    assert stated(model) == before[1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["yarn+logn", "self_extend"])
def test_a_compiled_graph_follows(scheme: str) -> None:
    model, ids = patched("llama", scheme, 4), random_tokens(tiny_model("llama"), LENGTH)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    first = logits(compiled, ids, use_cache=False)
    set_factor(model, 2)
    expected = logits(patched("llama", scheme, 2), ids)
    assert (logits(compiled, ids, use_cache=False) - expected).abs().max() < 1e-5
    assert (first - expected).abs().max() > 1e-3


TEXT = torch.randint(3, 90, (1, 300), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scheme", ["yarn", "t5", "dca"])
@pytest.mark.parametrize("inside", ["rerope", "fire", None])
def test_the_scheme_comes_back_with_its_parameters(scheme: str, inside: str | None, tmp_path) -> None:
    model, _ = load_starter("llama")
    plain = logits(model, TEXT)
    patch_model(model, scheme, factor=4)
    perturb_parameters(model)  # learned since
    want, names = logits(model, TEXT), list(model.state_dict())
    with scheme_set_aside(model):
        assert not is_patched(model)
        assert torch.equal(logits(model, TEXT), plain)
        if inside is not None:
            patch_model(model, inside, factor=2)
            assert not torch.equal(logits(model, TEXT), want)
    assert describe(model).scheme == scheme
    assert torch.equal(logits(model, TEXT), want)
    assert list(model.state_dict()) == names
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(from_pretrained(tmp_path), TEXT), want)
    assert torch.equal(logits(unpatch_model(model), TEXT), plain)


def test_an_error_inside_brings_it_back_as_well() -> None:
    model, _ = load_starter("llama")
    patch_model(model, "t5", factor=4)
    want = logits(model, TEXT)
    with pytest.raises(KeyError), scheme_set_aside(model):
        raise KeyError
    assert torch.equal(logits(model, TEXT), want)


def test_an_unpatched_model_is_unpatched_again() -> None:
    model, _ = load_starter("llama")
    plain = logits(model, TEXT)
    with scheme_set_aside(model):
        patch_model(model, "yarn", factor=2)
        assert describe(model).scheme == "yarn"
    assert not is_patched(model)
    assert torch.equal(logits(model, TEXT), plain)
