"""Checkpoints that were edited, lack a part of their scheme, or are requested under another one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_posenc import (
    describe,
    from_pretrained,
    is_patched,
    patch_model,
    unpatch_model,
)
from hf_posenc.checkpoints.restore import apply_scheme
from hf_posenc.errors import CheckpointMismatch, PosEncError
from hf_posenc.patching.stored.scheme_config import FORMAT, SchemeConfig

from .conftest import FACTOR, TRAINED


@pytest.fixture
def saved(make_model, tmp_path) -> Callable[..., Path]:
    """A folder with a patched model."""

    def save(kind: str = "llama", scheme: Any = "yarn", **options: Any) -> Path:
        patch_model(make_model(kind), scheme, **{"factor": FACTOR, **options}).save_pretrained(tmp_path)
        return tmp_path

    return save


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The folder with its configuration changed."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """The folder with its weights changed."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "lengths",
    [
        {"trained_length": 12, "target_length": 64}, {"trained_length": 8, "factor": 8},
        {"trained_length": 32, "factor": 2}, {"target_length": 50, "factor": None},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["yarn", "dynamic_ntk", "logn", "longrope"])
def test_lengths_are_those_that_were_given(
    scheme: str, lengths: dict[str, Any], make_model, logits_of, tmp_path
) -> None:
    """A trained length that was given is not the model's ``max_position_embeddings``."""
    options = {"factor": None, **lengths}
    model = patch_model(make_model("llama"), scheme, **options)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path)
    after, before = describe(loaded), describe(model)
    assert (after.trained_length, after.target_length) == (before.trained_length, before.target_length)
    length = before.target_length
    assert torch.equal(logits_of(loaded, length), logits_of(model, length))
    other = logits_of(patch_model(make_model("llama"), scheme, target_length=length), length)
    if before.trained_length != TRAINED:
        assert not torch.equal(other, logits_of(model, length))  # control


ROTATIONS = {
    "base": lambda rope: rope.update(rope_theta=5e5),
    "kind": lambda rope: rope.update(rope_type="linear", factor=2.0),
    "none": lambda rope: rope.clear(),
}


@pytest.mark.parametrize("change", ROTATIONS)
def test_a_rotation_changed_behind_the_scheme(change: str, saved) -> None:
    folder = saved()
    assert is_patched(from_pretrained(folder))
    edit(folder, lambda config: ROTATIONS[change](config["rope_parameters"]))
    with pytest.raises(PosEncError, match="rope"):
        from_pretrained(folder)


def test_options_left_out_are_the_defaults(saved) -> None:
    folder = saved()
    for agreeing in ({"beta_fast": 32.0}, {"beta_slow": 1.0, "ramp": "dim"}, {"truncate": True}):
        assert is_patched(from_pretrained(folder, scheme="yarn", **agreeing))
    for other in ({"beta_fast": 16.0}, {"beta_slow": 2.0}, {"ramp": "rotations"}, {"truncate": False}):
        with pytest.raises(CheckpointMismatch, match="was asked for"):
            from_pretrained(folder, scheme="yarn", **other)


def test_compositions_agree_part_by_part(saved) -> None:
    folder = saved(scheme="yarn+logn")
    assert is_patched(from_pretrained(folder, scheme="yarn+logn"))
    for other in ("yarn", "logn", "logn+yarn", "pi+logn"):
        with pytest.raises(CheckpointMismatch, match="was asked for"):
            from_pretrained(folder, scheme=other)


BLOCKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a later format": (lambda b: b.update(format=FORMAT + 1), "Update hf_posenc"),
    "an earlier format": (lambda b: b.update(format=0), "its format is 0"),
    "no format": (lambda b: b.pop("format"), "its format is None"),
    "a true format": (lambda b: b.update(format=True), "its format is True"),
    "an unknown key": (lambda b: b.update(schema=[]), "unknown key 'schema'"),
    "a target before the trained length": (lambda b: b.update(target_length=TRAINED - 1), "shorter than its trained"),
    "half a length": (lambda b: b.update(trained_length=1.5), "trained_length"),
    "no part": (lambda b: b.update(scheme=[]), "1 to"),
    "a part without options": (lambda b: b.update(scheme=[{"name": "yarn"}]), "a name and options"),
    "an unknown scheme": (lambda b: b.update(scheme=[{"name": "yarm", "options": {}}]), "not registered here"),
    "an unknown option": (lambda b: b.update(scheme=[{"name": "yarn", "options": {"beta": [3]}}]), "beta"),
    "layers that are a list": (lambda b: b.update(layers=[]), "layers is no object"),
    **{f"without {name}": (lambda b, name=name: b.pop(name), name) for name in (
        "scheme", "layers", "trained_length", "target_length", "host_length"
    )},
}  # fmt: skip


@pytest.mark.parametrize("change", BLOCKS)
def test_a_scheme_config_of_null(change: str, saved) -> None:
    meddle, message = BLOCKS[change]
    with pytest.raises(CheckpointMismatch, match=message):
        from_pretrained(edit(saved(), lambda config: meddle(config["position_scheme"])))


def test_a_scheme_config_round_trip(make_model) -> None:
    model = patch_model(make_model("llama"), "yarn", trained_length=12, target_length=60, layers={1: ("pi", {})})
    block = SchemeConfig.of_model(model)
    assert (block.trained_length, block.target_length, block.host_length) == (12, 60, TRAINED)
    assert SchemeConfig.read(json.loads(json.dumps(block.to_json())), "here") == block
    assert describe(apply_scheme(block, make_model("llama"))).layers == {"1": "pi"}
    for name in ("trained_length", "target_length", "host_length"):
        changed = copy.deepcopy(block.to_json())
        changed[name] += 1
        assert SchemeConfig.read(changed, "here") != block


def test_a_weight_of_the_base_that_is_missing(saved) -> None:
    """transformers would make one up, and only warn."""
    names = ("model.layers.1.self_attn.v_proj.weight", "model.norm.weight", "model.embed_tokens.weight")
    folder = saved()
    whole = {
        name: weight.clone() for name, weight in load_file(folder / "model.safetensors").items()
    }  # not the file itself
    for name in names:
        save_file(
            {n: w for n, w in whole.items() if n != name}, folder / "model.safetensors", metadata={"format": "pt"}
        )
        with pytest.raises(CheckpointMismatch, match=f"lacks the weight '{name}'"):
            from_pretrained(folder)
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    assert is_patched(from_pretrained(folder))


def test_a_weight_of_another_shape(saved) -> None:
    folder = saved()
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(7)}))
    with pytest.raises(PosEncError, match=r"model\.norm\.weight"):
        from_pretrained(folder, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.posenc.table.weight"])
def test_a_weight_that_is_no_number(name: str, saved) -> None:
    folder = saved(scheme="t5")
    edit_weights(folder, lambda weights: weights[name].view(-1)[3:4].fill_(torch.nan))
    with pytest.raises(PosEncError, match=name.replace(".", r"\.")):
        from_pretrained(folder)


def test_a_plain_weight_that_is_no_number(make_model, tmp_path) -> None:
    """Nothing is patched, and what is loaded is looked at all the same."""
    make_model("llama").save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda weights: weights["model.norm.weight"][2:3].fill_(torch.inf))
    with pytest.raises(PosEncError, match="norm"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("lost", ["log_slopes", "both"])
def test_what_a_checkpoint_has_is_kept_where_it_lacks_the_rest(lost: str, make_model, tmp_path) -> None:
    """A composition of two learned schemes, one of which has no weights: the other keeps its own."""
    model = patch_model(make_model("llama"), [("alibi", {"slopes": "learned"}), ("t5", {})], factor=FACTOR)
    learned = {name: p for name, p in model.named_parameters() if "posenc" in name}
    with torch.no_grad():
        for parameter in learned.values():
            parameter.fill_(0.125)
    model.save_pretrained(tmp_path)
    names = [name for name in learned if lost == "both" or lost in name]
    assert names
    edit_weights(tmp_path, lambda weights: [weights.pop(name) for name in names])
    loaded = dict(from_pretrained(tmp_path).named_parameters())
    for name in learned:
        assert bool((loaded[name] == 0.125).all()) == (name not in names)
        assert loaded[name].isfinite().all()


def test_what_a_scheme_has_is_kept_where_it_lacks_a_part(make_model, tmp_path) -> None:
    """FIRE has several parameters in one scheme: those that are there are not drawn anew."""
    model = patch_model(make_model("llama"), "fire", factor=FACTOR)
    learned = {name: p for name, p in model.named_parameters() if "posenc" in name}
    assert len(learned) > 2
    with torch.no_grad():
        for number, parameter in enumerate(learned.values()):
            parameter.fill_(0.25 + number / 64)
    model.save_pretrained(tmp_path)
    first = next(iter(learned))
    edit_weights(tmp_path, lambda weights: weights.pop(first))
    loaded = dict(from_pretrained(tmp_path).named_parameters())
    for name, parameter in learned.items():
        assert torch.equal(loaded[name], parameter) == (name != first)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_table_out_of_use_stays_frozen(kind: str, saved, make_model) -> None:
    folder = saved(kind, "alibi")
    before = patch_model(make_model(kind), "alibi", factor=FACTOR)
    frozen = [name for name, p in before.named_parameters() if not p.requires_grad]
    assert frozen
    loaded = from_pretrained(folder)
    assert [name for name, p in loaded.named_parameters() if not p.requires_grad] == frozen
    assert all(p.requires_grad for p in unpatch_model(loaded).parameters())


@pytest.mark.parametrize(
    "asked", [{"factor": 2.0}, {"target_length": 65}, {"trained_length": 15}, {"layers": {0: "pi"}}]
)
def test_lengths_and_layers_that_contradict(asked: dict[str, Any], saved) -> None:
    folder = saved()
    with pytest.raises(CheckpointMismatch, match="was asked for"):
        from_pretrained(folder, **asked)
    agreeing = {"factor": 4.0, "target_length": 64, "trained_length": 16}
    assert is_patched(from_pretrained(folder, **agreeing))
