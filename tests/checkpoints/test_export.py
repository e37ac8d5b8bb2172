"""Plain checkpoints: transformers without this package computes what the patched model computes."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

from hf_posenc import describe, export, load_starter, patch_model, scheme_of
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import AlreadyScaled, NotExpressible, NotPatched, OnlyWithinTrainedLength
from hf_posenc.schemes.rotary.yarn import Yarn

from ..families.tiny import tiny
from ..small_models import edit

EXPRESSIBLE = [
    ("rope", {"base": 500.0}), ("abf", {}), ("pi", {}), ("ntk", {}), ("ntk_parts", {}), ("yarn", {}),
    ("yarn", {"beta_fast": 16.0, "truncate": False, "attention_factor": 1.3}), ("llama3", {}),
    ("proportional", {"p": 0.5}), ("ntk_parts_v1", {}), ("yarn", {"ramp": "rotations", "attention_factor": 1.1}),
    ("mrrope", {}), ("yarn+resonance", {}), ("clipped_rope", {"pairs": 8}), ("host+yarn", {}),
]  # fmt: skip
TEXT = torch.randint(3, 96, (1, 3 * TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))


WITHOUT = """
import sys; sys.modules["hf_posenc"] = None
from pathlib import Path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
for folder in Path(".").glob("*"):
    if folder.is_dir():
        model, texts = AutoModelForCausalLM.from_pretrained(folder).eval(), load_file("texts.safetensors")
        in_turn = sorted(texts, key=lambda name: texts[name].shape[1])  # its dynamic NTK remembers longer texts
        save_file({name: model(texts[name]).logits.detach() for name in in_turn}, folder / "logits.safetensors")
"""
LENGTHS = {"trained": TRAINED_LENGTH, "beyond": 3 * TRAINED_LENGTH, "target": 4 * TRAINED_LENGTH}
TEXTS = {name: torch.cat((TEXT, TEXT.flip(1)), 1)[:, :length].clone() for name, length in LENGTHS.items()}
BY_LENGTH = [("longrope", {}), ("dynamic_ntk", {}), ("dynamic_ntk", {"multiplier": 2.0, "granularity": 8})]


def test_a_type_that_transformers_does_not_have_yet_is_refused(monkeypatch, tmp_path) -> None:
    monkeypatch.delitem(ROPE_INIT_FUNCTIONS, "proportional", raising=False)
    with pytest.raises(NotExpressible, match="does not know the RoPE type 'proportional' yet"):
        export(patch_model(tiny_model("llama"), "proportional", factor=4, p=0.5), tmp_path / "plain")


@pytest.mark.skipif("proportional" not in ROPE_INIT_FUNCTIONS, reason="this transformers does not have the RoPE type")
def test_a_proportional_rotation_that_is_not_stretched_loads_without_a_warning(tmp_path, caplog) -> None:
    from transformers import AutoConfig
    from transformers.utils import logging

    model = patch_model(tiny_model("llama"), "proportional", p=0.5)
    assert "factor" not in export(model, tmp_path).written["rope_parameters"]
    logging.enable_propagation()
    caplog.clear()
    AutoConfig.from_pretrained(tmp_path)
    logging.disable_propagation()
    assert "Unrecognized" not in caplog.text


@pytest.mark.slow
def test_plain_transformers_computes_the_same(run_in_new_process, tmp_path) -> None:
    """Without this package, at the trained and at the target length; by-length schemes at the trained one only."""
    save_file(TEXTS, tmp_path / "texts.safetensors")
    models = {}
    for number, (scheme, options) in enumerate([*EXPRESSIBLE, *BY_LENGTH]):
        if scheme == "proportional" and scheme not in ROPE_INIT_FUNCTIONS:
            continue  # earlier releases of transformers do not have it; `export` says so
        model = models[f"{number}-{scheme}"] = patch_model(tiny_model("llama"), scheme, factor=4, **options)
        by_length = (scheme, options) in BY_LENGTH
        with pytest.warns(OnlyWithinTrainedLength, match="32 tokens") if by_length else nullcontext():
            exported = export(model, tmp_path / f"{number}-{scheme}")
        config = json.loads((tmp_path / f"{number}-{scheme}" / "config.json").read_text())
        assert "position_scheme" not in config
        assert config["max_position_embeddings"] == (TRAINED_LENGTH if scheme == "dynamic_ntk" else 4 * TRAINED_LENGTH)
        assert config["rope_parameters"]["rope_type"] == exported.written["rope_parameters"]["rope_type"]
    run_in_new_process(WITHOUT)
    for folder, model in models.items():
        stored = load_file(tmp_path / folder / "logits.safetensors")
        by_length = folder.partition("-")[2] in ("longrope", "dynamic_ntk")
        with torch.no_grad():
            for name, text in TEXTS.items():
                apart = (stored[name] - model(text).logits).abs().max().item()
                if by_length and name != "trained":
                    assert apart > 0.1, (folder, name, apart)  # control: the warning says the truth
                else:
                    assert apart < 1e-4, (folder, name, apart)  # frequencies are float32 there, float64 here
            if folder.partition("-")[2] != "dynamic_ntk":  # it equals the unpatched model up to the trained length
                assert (tiny_model("llama")(TEXTS["trained"]).logits - stored["trained"]).abs().max() > 0.01  # control


@pytest.mark.parametrize("scheme", ["alibi", "self_extend", "yarn+logn", "longrope+logn", "xpos", "sinks"])
def test_what_transformers_cannot_say_is_refused(scheme: str, tmp_path) -> None:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    with pytest.raises(NotExpressible, match="save_pretrained"):
        export(model, tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize("recipe", ["pose", "shape", "cape"])
def test_a_recipe_that_acts_in_training_alone_is_left_out(recipe: str, tmp_path) -> None:
    model = patch_model(tiny_model("llama"), f"yarn+{recipe}", factor=4)
    assert export(model, tmp_path / "plain").written["rope_parameters"]["rope_type"] == "yarn"
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    with torch.no_grad():
        for text in TEXTS.values():
            assert (plain(text).logits - model(text).logits).abs().max() < 1e-4
    with pytest.raises(NotExpressible, match="no counterpart"):  # control: it draws positions in evaluation, too
        export(patch_model(tiny_model("llama"), "yarn+randpos", factor=4), tmp_path / "random")


@pytest.mark.parametrize(("model", "scheme"), [("bert", "rope"), ("bert", "learned_interp"), ("gpt2", "yarn")])
def test_a_model_that_transformers_does_not_rotate_is_refused(model: str, scheme: str, tmp_path) -> None:
    with pytest.raises(NotExpressible, match=f"does not rotate queries and keys in a {model}"):
        export(patch_model(tiny_model(model), scheme, factor=2), tmp_path / "plain")


def test_layers_and_unpatched_models(tmp_path) -> None:
    with pytest.raises(NotExpressible):
        export(patch_model(tiny_model("llama"), "irope", factor=4), tmp_path)
    with pytest.raises(NotExpressible, match="layers lack"):
        export(patch_model(tiny_model("llama"), "pi", factor=4, layers={"1": "none"}), tmp_path)
    with pytest.raises(NotPatched):
        export(tiny_model("llama"), tmp_path)


WRONG = {
    "another temperature": {"attention_factor": 1.01},
    "another factor": {"factor": 3.9},
    "another base": {"rope_theta": 10_100.0},
    "another ramp": {"beta_fast": 8.0, "beta_slow": 0.01},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_exported_parameters_are_compared_with_the_scheme(wrong: str, tmp_path, monkeypatch) -> None:
    """A scheme whose `native` says something else than it does, as a release of transformers may read it."""
    honest = Yarn.native
    export(patch_model(tiny_model("llama"), "yarn", factor=4), tmp_path / "honest")
    monkeypatch.setattr(Yarn, "native", lambda self: honest(self) | WRONG[wrong])
    with pytest.raises(NotExpressible, match="another rotation"):
        export(patch_model(tiny_model("llama"), "yarn", factor=4), tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_an_output_layer_of_its_own_stays_so_under_a_configuration_that_ties_it(tmp_path) -> None:
    model = patch_model(tiny_model("llama"), "yarn", factor=4)
    model.config.tie_word_embeddings = True
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().flip(0))
    export(model, tmp_path)
    plain = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(plain.lm_head.weight, model.lm_head.weight)
    assert not plain.config.tie_word_embeddings  # which other engines go by


def test_no_rotation_of_a_family_whose_tiny_frequencies_are_read_as_none(tmp_path) -> None:
    model = patch_model(tiny("qwen3", num_hidden_layers=2), "none", factor=4)
    export(model, tmp_path)
    tokens = torch.arange(3, 35)[None]
    there, here = (one.eval()(tokens).logits for one in (AutoModelForCausalLM.from_pretrained(tmp_path), model))
    assert torch.allclose(there, here, atol=1e-4)  # two float32 implementations of logits of about 1


def test_learned_frequencies_are_stated_as_a_list(tmp_path) -> None:
    """By plain transformers, which has no such parameter; beyond the trained length as within it."""
    model = patch_model(tiny_model("llama"), "rope", factor=4, learn_freq=True)
    untrained = model(TEXTS["target"]).logits.detach()
    torch.nn.init.normal_(scheme_of(model).correction, std=0.1, generator=torch.Generator().manual_seed(0))
    assert export(model, tmp_path).written["rope_parameters"]["rope_type"] == "longrope"
    there, here = (one(TEXTS["target"]).logits for one in (LlamaForCausalLM.from_pretrained(tmp_path), model))
    assert torch.allclose(there, here, atol=1e-4)  # two float32 implementations of logits of about 1
    assert not torch.allclose(untrained, here, atol=0.1), "the frequencies have learned nothing"


KEYS = ("position_trained_length", "position_trained_theta")


@pytest.mark.parametrize("scheme", ["pi", "ntk", "dynamic_ntk", "host", "yarn"])
@pytest.mark.filterwarnings("ignore::hf_posenc.errors.OnlyWithinTrainedLength")
def test_a_factor_counts_from_what_the_weights_of_an_export_saw(scheme: str, tmp_path, caplog) -> None:
    """The next scheme computes what it does on the model before the first; transformers says nothing of the entries."""
    export(patch_model(tiny_model("llama"), scheme, factor=4), tmp_path)
    logging.enable_propagation()
    caplog.clear()
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    logging.disable_propagation()
    assert "position_" not in caplog.text
    given = {}
    if scheme != "host":
        with pytest.raises(AlreadyScaled, match=f"trained_length={TRAINED_LENGTH}"):
            patch_model(again, "yarn", factor=3)
        given = {"trained_length": TRAINED_LENGTH}
    if scheme == "ntk":
        given["base"] = getattr(again.config, KEYS[1])
    patch_model(again, "yarn", factor=3, **given)
    assert describe(again).target_length == 3 * TRAINED_LENGTH
    text = TEXTS["beyond"]
    with torch.no_grad():
        wanted = patch_model(tiny_model("llama"), "yarn", factor=3)(text).logits
        assert (again(text).logits - wanted).abs().max() < 1e-5
    stated = [name for name in KEYS if hasattr(again.config, name)]
    assert stated == {"ntk": list(KEYS), "yarn": []}.get(scheme, list(KEYS[:1]))


def test_without_the_entry_the_target_would_be_taken_for_the_trained_length(tmp_path) -> None:
    """Control; and what is stretched once more still says what the weights saw."""
    export(patch_model(tiny_model("llama"), "ntk", factor=4), tmp_path / "once")
    twice = patch_model(AutoModelForCausalLM.from_pretrained(tmp_path / "once"), "host+ntk", factor=2)
    assert describe(twice).target_length == 8 * TRAINED_LENGTH
    export(twice, tmp_path / "twice")
    assert json.loads((tmp_path / "twice" / "config.json").read_text())[KEYS[0]] == TRAINED_LENGTH
    bare = AutoModelForCausalLM.from_pretrained(edit(tmp_path / "once", without=KEYS))
    patch_model(bare, "yarn", factor=2)
    assert describe(bare).trained_length == 4 * TRAINED_LENGTH


@pytest.mark.parametrize(("to", "file"), [("transformers", "config.json"), ("gguf", "model.gguf")])
def test_a_name_is_what_a_loaded_model_is(to: str, file: str, tmp_path) -> None:
    if to == "gguf":
        pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")
    model, tokenizer = load_starter("llama")
    exported = export(patch_model(model, "yarn", factor=2), tmp_path / "loaded", to=to, tokenizer=tokenizer)
    named = export("starter:llama", tmp_path / "named", to=to, scheme="yarn", factor=2)
    assert (named.written, named.readers, named.tokenizer) == (exported.written, exported.readers, True)
    files, others = ({path.name for path in one.folder.iterdir()} for one in (named, exported))
    assert file in files == others


@pytest.mark.parametrize(
    "options", [{"to": "ggml"}, {"factor": 4}, {"to": "gguf", "results": ["results.json"]}], ids=str
)
def test_what_no_format_takes_is_refused(options: dict[str, object], tmp_path) -> None:
    with pytest.raises((ValueError, TypeError)):
        export(patch_model(tiny_model("llama"), "yarn", factor=2), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
