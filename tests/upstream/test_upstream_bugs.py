"""Bugs we work around, as expected failures: when one passes, upstream is fixed and the workaround can go.

Those that change weights silently are in `tests/silent`.
"""

from __future__ import annotations

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, Trainer, TrainerCallback, TrainingArguments

from ..small_models import llama

TEXT = torch.randint(3, 64, (1, 48), generator=torch.Generator().manual_seed(1))


def bug(workaround: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"upstream; the workaround is {workaround}")


@bug("dynamic_ntk, whose keys are turned when they are read")
def test_dynamic_frequencies_and_a_cache() -> None:
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    with torch.no_grad():
        whole, cache = model(TEXT).logits[:, -1], None
        for step in range(TEXT.shape[1]):
            out = model(TEXT[:, step : step + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
    assert (out.logits[:, -1] - whole).abs().max() < 1e-3


@bug("longrope, which keeps both copies of a key")
def test_longrope_across_its_border() -> None:
    rope = {
        "rope_type": "longrope", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0],
    }  # fmt: skip
    model = llama(rope_parameters=rope, max_position_embeddings=64)
    with torch.no_grad():
        whole = model(TEXT).logits[:, -1]
        cache = model(TEXT[:, :10], use_cache=True).past_key_values
        assert (model(TEXT[:, 10:], past_key_values=cache).logits[:, -1] - whole).abs().max() < 1e-3


@bug("frequencies that are Python's floats")
def test_frequencies_in_bfloat16() -> None:
    model = llama().to(torch.bfloat16)
    exact = 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    assert ((model.model.rotary_emb.inv_freq.double() - exact).abs() * 32768).max() < 0.1


@bug("the callback End in hf_posenc.training.run_folder")
def test_a_finished_run_takes_no_further_step(tmp_path) -> None:
    """Resumed from its last checkpoint, `Trainer` takes one step beyond ``max_steps``."""
    pytest.importorskip("accelerate")
    rows = [{"input_ids": TEXT[0, :16], "labels": TEXT[0, :16]}] * 8
    taken: list[int] = []

    class Count(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            taken.append(state.global_step)

    def train(resume: bool) -> None:
        arguments = TrainingArguments(
            str(tmp_path), max_steps=2, save_steps=2, per_device_train_batch_size=1, report_to="none", use_cpu=True,
            disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        Trainer(llama(), arguments, train_dataset=rows, callbacks=[Count()]).train(resume_from_checkpoint=resume)

    train(False)
    taken.clear()
    train(True)
    assert taken == []


def falcon(attention: str, **config: object) -> FalconForCausalLM:
    torch.manual_seed(0)
    settings = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = FalconConfig(**settings, initializer_range=0.3, **config)  # type: ignore[arg-type]
    return FalconForCausalLM._from_config(own, attn_implementation=attention).eval()


@bug("InlineAttention.mix in hf_posenc.patches.shared.inline_decoder, which has the engine compute weights")
def test_falcon_sees_later_tokens_where_weights_are_asked_for() -> None:
    model = falcon("sdpa")
    with torch.no_grad():
        weights = model(TEXT, output_attentions=True).attentions[0]
    assert not weights.triu(1).any()


@bug("hf_posenc.patches.falcon, which takes the bias of sdpa for what is meant")
def test_falcon_adds_its_bias_twice_under_eager() -> None:
    with torch.no_grad():
        once, twice = (falcon(name, alibi=True)(TEXT).logits for name in ("sdpa", "eager"))
    assert (once - twice).abs().max() < 1e-3
