"""What engines compute from an exported checkpoint, by the formula of each and, where one is installed, by itself."""

from __future__ import annotations

import json
import math
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posenc import export, from_pretrained, patch_model, read_elsewhere
from hf_posenc.checkpoints.readers import llama_cpp, mlx_lm, sglang, vllm
from hf_posenc.checkpoints.readers.stated import ExportedConfig, Unread
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import ReadOtherwise

Names = tuple[str, ...]
FACTOR = 4
TARGET = FACTOR * TRAINED_LENGTH
TEXT = torch.randint(3, 96, (1, 3 * TRAINED_LENGTH), generator=torch.Generator().manual_seed(0))
LISTS = {"long_factor": [1.0 + 0.3 * pair for pair in range(8)], "short_factor": [1.0] * 8}
VLLM, SGLANG, MLX, LLAMA = (reader.NAME for reader in (vllm, sglang, mlx_lm, llama_cpp))
# Every exportable scheme and option that changes numbers, and the engines that compute something else.
CASES: list[tuple[str, dict[str, Any], Names]] = [
    ("rope", {"base": 500.0}, ()),
    ("abf", {}, ()),
    ("pi", {}, ()),
    ("ntk", {}, ()),
    ("llama3", {}, ()),
    ("llama3", {"low_freq_factor": 2.0, "high_freq_factor": 8.0}, ()),
    ("yarn", {}, ()),
    ("yarn", {"beta_fast": 16.0, "beta_slow": 2.0}, ()),
    ("yarn", {"truncate": False}, (MLX, LLAMA)),
    ("yarn", {"attention_factor": 1.3}, (LLAMA,)),
    ("yarn", {"attention_factor": 0.8}, (LLAMA,)),
    ("yarn", {"mscale": 0.7, "mscale_all_dim": 0.4}, (LLAMA,)),
    ("ntk_parts", {}, (LLAMA,)),
    ("ntk_parts_v1", {}, (MLX, LLAMA)),
    ("yarn", {"ramp": "rotations"}, (MLX, LLAMA)),
    ("mrrope", {}, (MLX, LLAMA)),
    ("yarn+resonance", {}, (MLX, LLAMA)),
    ("dynamic_ntk", {}, ()),
    ("longrope", LISTS, (MLX, LLAMA)),
    ("longrope", LISTS | {"attention_factor": 1.3}, (MLX, LLAMA)),
    ("proportional", {"p": 0.5}, (VLLM, SGLANG, LLAMA)),
]


def patched(scheme: str, options: dict[str, Any], factor: int = FACTOR, **entries: Any) -> Any:
    if scheme == "proportional" and scheme not in ROPE_INIT_FUNCTIONS:
        pytest.skip("this transformers does not have the RoPE type")
    model: Any = tiny_model("llama")
    vars(model.config).update(entries)
    return patch_model(model, scheme, factor=factor, **options)


def exported(folder: Path, scheme: str, options: dict[str, Any], **entries: Any) -> tuple[dict[str, Any], list[str]]:
    """What is in ``config.json``, and what was said of other programs."""
    model = patched(scheme, options, **entries)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export(model, folder)
    said = [str(one.message) for one in caught if issubclass(one.category, ReadOtherwise)]
    return json.loads((folder / "config.json").read_text()), said


@pytest.mark.parametrize(("scheme", "options", "otherwise"), CASES, ids=str)
def test_who_computes_the_same(scheme: str, options: dict[str, Any], otherwise: Names, tmp_path: Path) -> None:
    found = {reading.reader: reading for reading in read_elsewhere(patched(scheme, options))}
    assert {name for name, reading in found.items() if reading.verdict != "exact"} == set(otherwise)
    said = exported(tmp_path, scheme, options)[1]
    assert all(any(name in one for one in said) for name in otherwise)


@pytest.mark.parametrize("reader", [vllm, sglang, mlx_lm, llama_cpp], ids=lambda reader: reader.NAME)
@pytest.mark.parametrize(("scheme", "options", "otherwise"), CASES, ids=str)
def test_exact_is_what_transformers_computes(
    scheme: str, options: dict[str, Any], otherwise: Names, reader: Any, tmp_path: Path
) -> None:
    """By transformers' own functions on the written file: frequencies and temperature, both in float32."""
    exported(tmp_path, scheme, options)
    config = AutoConfig.from_pretrained(tmp_path)
    parameters = config.rope_parameters
    kind, heads = parameters["rope_type"], config.head_dim
    if kind == "default":
        frequencies, amplitude = parameters["rope_theta"] ** (-torch.arange(0, heads, 2) / heads), 1.0
    else:
        frequencies, amplitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=TRAINED_LENGTH)
    length = TRAINED_LENGTH if kind in ("longrope", "dynamic") else TARGET
    read = reader.read(ExportedConfig(parameters, "llama", heads, False, config.max_position_embeddings, length))
    pairs = len(read.frequencies)
    same = pairs == len(frequencies) and torch.allclose(torch.tensor(read.frequencies), frequencies, rtol=2e-6, atol=0)
    same = same and math.isclose(read.amplitude, amplitude, rel_tol=1e-6)
    assert same == (reader.NAME not in otherwise)


def test_logits_of_a_reader_that_takes_the_usual_temperature() -> None:
    """YaRN, equation 22: 0.1 ln s + 1 is squared in the logits; ``ntk_parts`` has none."""
    found = {reading.reader: reading for reading in read_elsewhere(patched("ntk_parts", {}))}
    assert found[LLAMA].logit_scale == pytest.approx((0.1 * math.log(FACTOR) + 1) ** 2)
    assert str(found[LLAMA]).endswith("logits times 1.3")
    assert found[SGLANG].verdict == "exact", "it is told by attn_factor"


def test_engines_that_do_not_read_the_share_of_rotated_pairs() -> None:
    """Seen at factor 1: the fastest pair that should stand still turns by θ^(−8 / 16) = 0.01 radians a token."""
    found = {reading.reader: reading.phase for reading in read_elsewhere(patched("proportional", {"p": 0.5}, 1))}
    assert found == pytest.approx({VLLM: 0, MLX: 0, SGLANG: 0.01 * TRAINED_LENGTH, LLAMA: 0.01 * TRAINED_LENGTH})


def test_models_that_mlx_does_not_read_as_transformers_does() -> None:
    """Seen by running its classes: Phi-3's raises without a key ``type``, GLM's rotates the whole head."""
    stated = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.5}
    for family, fastest in (("qwen3_moe", 1.0), ("gpt_neox", 1.0), ("llama", 0.25)):  # of two it scales none
        assert mlx_lm.read(ExportedConfig(stated, family, 16, False, 64, 64)).frequencies[0] == fastest
    with pytest.raises(Unread, match="'type'"):
        mlx_lm.read(ExportedConfig(stated, "phi3", 16, False, 64, 64))
    assert len(mlx_lm.read(ExportedConfig(stated, "glm", 16, True, 64, 64)).frequencies) == 8


def test_lists_that_llama_cpp_has_for_phi_3_alone() -> None:
    """Its converter writes them with √(1 + ln s / ln L0), whatever is stated; for other models it writes none."""
    lists = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "short_mscale": 1.3, "long_mscale": 1.3}
    stated = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, **lists}
    read = llama_cpp.read(ExportedConfig(stated, "phi3", 16, False, 128, 128))
    assert read.frequencies[0] == 0.25
    assert read.amplitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(32)))
    assert llama_cpp.read(ExportedConfig(stated, "llama", 16, False, 128, 128)).frequencies[0] == 1.0


def test_an_exported_checkpoint_can_be_patched_again(tmp_path: Path) -> None:
    """What other engines read does not change what this package reads."""
    exported(tmp_path, "yarn", {"attention_factor": 1.3})
    again = patch_model(from_pretrained(tmp_path), "host", factor=1)
    assert torch.allclose(again(TEXT).logits, patched("yarn", {"attention_factor": 1.3})(TEXT).logits, atol=1e-5)


def length_in_vllm(config: dict[str, Any]) -> int:
    """Its rule: the smallest length that is stated, times the factor of RoPE types but three."""
    names = ("max_position_embeddings", "max_sequence_length", "model_max_length")
    length, rope = min(config[name] for name in names if name in config), config["rope_parameters"]
    if rope["rope_type"] in ("longrope", "llama3"):
        return length
    return int(rope.get("factor", 1) * rope.get("original_max_position_embeddings", length))


@pytest.mark.parametrize(("scheme", "options"), [("pi", {}), ("proportional", {"p": 0.5}), ("yarn", {}), ("ntk", {})])
def test_a_longer_window_is_said(scheme: str, options: dict[str, Any], tmp_path: Path) -> None:
    config, said = exported(tmp_path, scheme, options)
    read = length_in_vllm(config)
    sentence = f"texts of {read:,} tokens. Start it with --max-model-len {TARGET}."
    assert any(sentence in one for one in said) == (read > TARGET) == (scheme in ("pi", "proportional"))


def test_other_entries_of_the_window_follow(tmp_path: Path) -> None:
    """A smaller one was chosen; the rotation is not read from any of them."""
    config, _ = exported(tmp_path, "yarn", {}, max_sequence_length=TRAINED_LENGTH, model_max_length=TRAINED_LENGTH)
    assert length_in_vllm(config) == TARGET == config["max_sequence_length"] == config["model_max_length"]
    config, _ = exported(tmp_path, "yarn", {}, max_sequence_length=TRAINED_LENGTH - 1)
    assert config["max_sequence_length"] == TRAINED_LENGTH - 1


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options", "otherwise"), CASES, ids=str)
def test_mlx_lm_itself(scheme: str, options: dict[str, Any], otherwise: Names, tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed (pip install mlx-lm 'mlx[cpu]')")
    import mlx.core as mx
    import numpy as np
    from mlx_lm.utils import load_model

    exported(tmp_path, scheme, options)
    text = TEXT[:, : TRAINED_LENGTH - 1] if scheme in ("longrope", "dynamic_ntk") else TEXT
    there = np.array(load_model(tmp_path)[0](mx.array(text.numpy())).astype(mx.float32))
    apart = np.abs(there - patched(scheme, options)(text).logits.detach().numpy()).max()
    # 1e-4: two float32 implementations of logits of about 1; what is read otherwise differs by a tenth and more.
    assert (apart < 1e-4) == (MLX not in otherwise)


PLAIN = {"rope_type": "default", "rope_theta": 1e4}
# A model, whether its layers with a window are scaled too, and who computes something else in them and in the others.
BY_TYPE: list[tuple[str, bool, Names, Names, Names]] = [
    ("gemma3_text", False, (), (), ()),
    ("gemma3_text", True, (SGLANG, MLX, LLAMA), (MLX,), ()),
    ("olmo3", False, (), (), (SGLANG,)),
    ("olmo3", True, (MLX, LLAMA), (MLX,), (SGLANG,)),
    ("modernbert", False, (SGLANG, MLX), (SGLANG, MLX, LLAMA), ()),
]


def of_two_types(family: str, window: bool, scheme: str = "pi") -> Any:
    of_full = PLAIN if family == "olmo3" else PLAIN | {"rope_theta": 1e6}  # OLMo 3 has one base
    kinds = {"full_attention": of_full, "sliding_attention": PLAIN}
    config = AutoConfig.for_model(
        family, vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=TRAINED_LENGTH, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters=kinds,
    )  # fmt: skip
    make = AutoModelForMaskedLM if family == "modernbert" else AutoModelForCausalLM
    return patch_model(make.from_config(config), scheme, factor=FACTOR, layers="all" if window else None)


old = pytest.mark.skipif(
    Version(version("transformers")) < Version("5.5"),
    reason="5.4 takes no yarn by type of layer, and no configuration of OLMo 3 as it is made here",
)


@old
@pytest.mark.parametrize(("family", "window", "of_window", "of_full", "unread"), BY_TYPE, ids=str)
def test_types_of_layers(family: str, window: bool, of_window: Names, of_full: Names, unread: Names) -> None:
    found = read_elsewhere(of_two_types(family, window))
    for layers, otherwise in (("sliding_attention", of_window), ("full_attention", of_full)):
        verdicts = {reading.reader: reading.verdict for reading in found if reading.layers == layers}
        assert {name for name, verdict in verdicts.items() if verdict == "unknown"} == set(unread)
        assert {name for name, verdict in verdicts.items() if verdict in ("different", "unable")} == set(otherwise)


def test_by_how_much_layers_with_a_window_differ() -> None:
    """Position interpolation slows the fastest pair from 1 to 1/s radians per token; a reader leaves it at 1."""
    found = {(one.reader, one.layers): one for one in read_elsewhere(of_two_types("gemma3_text", window=True))}
    assert found[LLAMA, "sliding_attention"].phase == pytest.approx((1 - 1 / FACTOR) * TARGET)
    assert found[VLLM, "sliding_attention"].verdict == "exact"


@old
@pytest.mark.parametrize(("scheme", "otherwise"), [("yarn", ()), ("llama3", (LLAMA,)), ("ntk_parts", (LLAMA,))])
def test_other_scalings_of_full_layers(scheme: str, otherwise: Names) -> None:
    found = read_elsewhere(of_two_types("gemma3_text", window=False, scheme=scheme))
    assert {one.reader for one in found if one.verdict != "exact"} == set(otherwise)
    assert {one.layers for one in found if one.verdict != "exact"} <= {"full_attention"}
