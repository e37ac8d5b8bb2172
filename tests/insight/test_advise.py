"""Advice: memory by hand, options by the papers' inequalities, and every printed call run on a live model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BloomConfig,
    CTRLConfig,
    FalconConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LongT5Config,
    MistralConfig,
    PreTrainedModel,
)

from hf_posenc import advise, describe, patch_model, scheme_of, unpatch_model
from hf_posenc.core.lengths import tokens
from hf_posenc.errors import AlreadyPatched, LengthContradiction, UnsupportedModel
from hf_posenc.insight.advise import Advice
from hf_posenc.insight.advise.candidates import well_trained_group
from hf_posenc.insight.advise.evidence import WITH_TRAINING, zero_shot_candidates
from hf_posenc.training.methods import learning_rate_for

TRAINED, TARGET, WORDS = 32, 128, 97
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def llama_7b(**changed: Any) -> LlamaConfig:
    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
    named = {"architectures": ["LlamaForCausalLM"], "dtype": "float16", "max_position_embeddings": 4096}
    return LlamaConfig(**{**shape, **named, **changed})


def tiny_llama(**changed: Any) -> LlamaConfig:
    named = {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 2, "intermediate_size": 32}
    return LlamaConfig(**{**TINY, **named, "max_position_embeddings": TRAINED, **changed})


def tiny_bert(**changed: Any) -> BertConfig:
    named = {"architectures": ["BertForMaskedLM"], "intermediate_size": 32, "max_position_embeddings": TRAINED}
    return BertConfig(**{**TINY, **named, **changed})


def tiny(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(tiny_llama()).eval()
    if kind == "scaled llama":
        rope = {**LLAMA3, "original_max_position_embeddings": TRAINED // 4}
        return LlamaForCausalLM(tiny_llama(rope_parameters=rope)).eval()
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=TRAINED)).eval()
    if kind == "bert decoder":
        return BertLMHeadModel(tiny_bert(is_decoder=True, architectures=["BertLMHeadModel"])).eval()
    return BertForMaskedLM(tiny_bert()).eval()


KINDS = ("llama", "scaled llama", "gpt2", "bert", "bert decoder")


def schemes(advice: Advice) -> list[str]:
    return [one.scheme for one in advice.recommendations]


@pytest.mark.slow
def test_cache_and_weights_of_llama_2_7b() -> None:
    """2 × 32 layers × 4096 channels × 2 bytes = 512 KiB per token; Meta gives 6.74 billion parameters."""
    memory = advise(llama_7b(), "128k").memory
    assert memory.token == 2 * 32 * 4096 * 2 == 512 * 1024
    assert memory.cache == 64 * 1024**3
    assert memory.weights == 2 * 6_738_415_616


def test_a_window_of_the_model_bounds_its_cache() -> None:
    memory = advise(MistralConfig(sliding_window=4096), "64k").memory
    assert memory.cache == 4096 * memory.token


@pytest.mark.parametrize("scheme", ["rerope", "ntk", "sinks"])
def test_caches_are_as_large_as_advised(scheme: str) -> None:
    """Against what generating fills."""
    model = tiny("llama")
    one = next(one for one in advise(model, TARGET).zero_shot if one.scheme == scheme)
    exec(one.patch, {"model": model, "patch_model": patch_model})
    prompt = torch.randint(3, WORDS, (1, TARGET), generator=torch.Generator().manual_seed(0))
    greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "return_dict_in_generate": True}
    filled = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, **greedy)
    layers = filled.past_key_values.layers
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) == one.cache


@pytest.mark.parametrize("kind", KINDS)
def test_every_recommended_call_patches_and_runs(kind: str) -> None:
    model = tiny(kind)
    before = model.config.to_dict()
    advice = advise(model, TARGET)
    assert model.config.to_dict() == before
    assert len(advice.recommendations) >= 5
    ids = torch.randint(3, WORDS, (1, TARGET), generator=torch.Generator().manual_seed(0))
    for one in advice.recommendations:
        exec(one.patch, {"model": model, "patch_model": patch_model})
        report = describe(model)
        assert (report.scheme, report.target_length) == (one.scheme, TARGET)
        # What keeps a table's own rows changes nothing before they end, and there is nothing to compare behind that.
        assert report.proof.verdict == "moved" or scheme_of(model).keeps_table, one.patch
        with torch.no_grad():
            assert torch.isfinite(model(input_ids=ids).logits).all(), one.patch
        unpatch_model(model)


def test_configuration_folder_and_model_get_one_advice(tmp_path: Path) -> None:
    """A folder without weights is enough."""
    tiny_llama(dtype="float32").save_pretrained(tmp_path)
    found = [advise(given, TARGET, name="M").to_dict() for given in (tmp_path, str(tmp_path), tiny("llama"))]
    assert found[0] == found[1] == found[2]


TRAINED_LENGTHS, FACTORS = st.integers(2, 2**18), st.floats(1, 2000)


@given(trained=TRAINED_LENGTHS, factor=FACTORS)
def test_group_keeps_to_the_inequalities(trained: int, factor: float) -> None:
    target, window = int(trained * factor), max(1, trained // 4)
    group = well_trained_group(trained, target, window)
    assert (trained - window) * group + window >= target
    assert 3 * (window * group + target - window) < 2 * trained * group
    if group > 1:  # the smallest
        assert 3 * (window * (group - 1) + target - window) >= 2 * trained * (group - 1)


@pytest.mark.slow
@given(trained=st.integers(8, 2**17), factor=st.floats(1, 500))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_option_is_refused_on_llama_at_any_length(trained: int, factor: float) -> None:
    """All claims end up among the recommendations, but for what changes nothing: a model of few, fast pairs, say."""
    advice = advise(tiny_llama(max_position_embeddings=trained), int(trained * factor) + 1)
    refused = {scheme: why for scheme, why in advice.refused.items() if "what this model does already" not in why}
    assert refused.keys() <= {"dpe"}, "whose eight bands are more than the pairs of this model"
    tried = {shown.scheme for shown in (*zero_shot_candidates(), *WITH_TRAINING) if shown.kind == "rotation"}
    assert tried == {*schemes(advice), *advice.refused}


@pytest.mark.slow
def test_base_of_abf_follows_the_bound() -> None:
    """arXiv:2405.14591: at least 0.0424 L^1.628, so 9.1 million for 128k; never less than Llama 2 Long's."""
    options = {one.scheme: one.options for one in advise(llama_7b(), "128k").training}
    assert 0.0424 * 131072**1.628 <= options["abf"]["base"] <= 1.1 * 0.0424 * 131072**1.628
    assert {one.scheme: one.options for one in advise(llama_7b(), "8k").training}["abf"]["base"] == 500_000.0


def test_half_the_heads_of_an_encoder_look_ahead() -> None:
    options = {kind: {o.scheme: o.options for o in advise(tiny(kind), TARGET).training} for kind in ("bert", "gpt2")}
    assert options["bert"]["alibi"] == {"bidirectional": "asymmetric"}
    assert options["gpt2"]["alibi"] == {}
    assert "kerple" not in options["bert"]  # the same on both sides: order would be lost


def test_nothing_to_do_within_the_trained_length() -> None:
    advice = advise(llama_7b(), 2048)
    assert advice.recommendations == ()
    assert "2,048 tokens need no scheme" in advice.warnings[0]


@pytest.mark.slow
def test_scaling_in_the_configuration_is_accounted_for() -> None:
    rope = {**LLAMA3, "original_max_position_embeddings": 8192}
    config = llama_7b(max_position_embeddings=131072, rope_parameters=rope)
    assert advise(config, "64k").recommendations == ()
    advice = advise(config, "256k")
    assert (advice.trained_length, advice.reach) == (8192, 131072)
    assert all(one.trained == 131072 for one in advice.zero_shot)
    assert all("trained_length" not in one.lengths for one in advice.zero_shot)
    replacing = [one for one in advice.training if one.scheme != "drope"]  # which rotates nothing
    assert all(one.lengths["trained_length"] == one.trained == 8192 for one in replacing)
    found = [one.scheme for one in advice.zero_shot]
    assert "yarn" not in found  # it would replace what the weights were tuned under
    assert "host+yarn" in found
    assert "'llama3'" in advice.positions


def test_nothing_is_put_on_frequencies_that_change_with_the_length() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    advice = advise(tiny_llama(rope_parameters=rope), TARGET)
    assert advice.zero_shot == ()
    assert "change with the length" in advice.refused["rerope"]
    assert "yarn" in schemes(advice)


def test_a_model_with_a_scheme_is_refused(tmp_path: Path) -> None:
    model = patch_model(tiny("llama"), "yarn", factor=2)
    model.save_pretrained(tmp_path)
    for given_ in (str(tmp_path), model):
        with pytest.raises(AlreadyPatched, match="carries scheme 'yarn'"):
            advise(given_, TARGET)


def test_a_target_beyond_the_table_is_warned_of() -> None:
    advice = advise(tiny_bert(), TRAINED**2 + 1)
    assert f"ends after {TRAINED**2} positions" in advice.refused["learned_hier"]
    assert "table ends after 32 rows" in " ".join(advice.warnings)
    assert "learned_hier" in schemes(advise(tiny_bert(), TRAINED**2))
    assert "rerope" not in schemes(advice)


@pytest.mark.parametrize(("alibi", "head_dim"), [("bloom", 8), ("falcon", 16)])
def test_a_linear_bias_is_interpolated(alibi: str, head_dim: int) -> None:
    """The model's own slopes over the factor: no scheme that needs a rotation, which a model with ALiBi lacks."""
    if alibi == "bloom":
        config: Any = BloomConfig(hidden_size=32, n_head=4, seq_length=TRAINED)
    else:
        config = FalconConfig(hidden_size=64, num_attention_heads=4, alibi=True, max_position_embeddings=TRAINED)
    advice = advise(config, 4 * TRAINED)
    assert advice.positions == "linear bias (ALiBi)"
    assert schemes(advice) == ["alibi", "sinks"]
    options = advice.zero_shot[0].options
    assert options["interpolate"] == 4.0
    own = [2.0 ** (-2 * (head + 1)) / math.sqrt(head_dim) for head in range(4)]
    assert options.get("slopes", "the released ones") == (own if alibi == "falcon" else "the released ones")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "why"),
    [(CTRLConfig(n_positions=4096), "Write an adapter for it"), (LongT5Config(), "holds several models")],
)
def test_an_architecture_without_adapter(config: Any, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        advise(config, "32k")


def test_an_architecture_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(UnsupportedModel, match="no-such-model"):
        advise(tmp_path, "32k")


@pytest.mark.parametrize("written", ["", "12q", "-4k", "0.3", "1e3", "99999m", True, 1.5, "４k"])
def test_invalid_lengths_are_refused(written: Any) -> None:
    with pytest.raises(LengthContradiction):
        tokens(written)


@pytest.mark.slow
def test_training_of_an_8b_model_has_its_memory() -> None:
    """525 of the 568 million trained numbers are embeddings."""
    shape = {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    config = llama_7b(max_position_embeddings=8192, **shape)
    advice = advise(config, "32k", name="some/model", dtype="bfloat16")
    step, tokens_of_text = advice.training_memory, 32768
    assert step is not None
    assert learning_rate_for("lora", step.weights // 2).value == 2e-5  # LongLoRA's at 7B and 13B
    rank_16 = 16 * 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    assert step.numbers == 128256 * 4096 + rank_16 + (2 * 32 + 1) * 4096
    assert step.trained == 16 * step.numbers
    assert step.weights == 2 * 8_030_261_248
    inputs = 2 * 32 * 4096 * tokens_of_text  # of every layer, which checkpointing keeps
    assert inputs < step.checkpointed < step.activations
    assert f"{step.numbers:,} numbers trained" in " ".join(str(advice).split())
