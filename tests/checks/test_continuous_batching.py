"""Continuous batching: shared pages, forks, padding, sliding windows, and pages kept between batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import CompileConfig, ContinuousBatchingConfig

from hf_posenc import patch_model, unpatch_model
from hf_posenc.checks.case import perturb_parameters
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.generation import NEW, generate_batch, request_error
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import BackendCannotCarry, InvalidInput, NeedsWholeText
from hf_posenc.forward.paged import requests_of
from hf_posenc.forward.paged_support import check_batched_scheme
from hf_posenc.patching.state import scheme_of

PAGE = "page_size" if hasattr(ContinuousBatchingConfig(), "page_size") else "block_size"
SMALL: dict[str, Any] = {PAGE: 8, "num_blocks": 64}
CLOSE = 1e-4


@pytest.fixture(autouse=True)
def no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_DISABLE", "1")


def patched(scheme: str) -> PreTrainedModel:
    model = patch_model(tiny_model("llama"), scheme, factor=4)
    perturb_parameters(model)
    return model


def prompts_of(model: PreTrainedModel) -> list[list[int]]:
    """Texts, two of which share a prefix longer than a page."""
    first, second = (random_tokens(model, TRAINED_LENGTH + 3, seed=seed)[0].tolist() for seed in (0, 1))
    return [first, first[:-5] + second[:2], second[:7], second[:1]]


def worst(model: PreTrainedModel, prompts: list[list[int]], results: list[Any]) -> float:
    return max(request_error(model, prompt, result) for prompt, result in zip(prompts, results, strict=True))


@pytest.mark.parametrize("scheme", ["alibi", "dca"])
def test_padded_batches(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For compilation transformers pads batches to a few sizes."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = patched(scheme)
    prompts = prompts_of(model)
    sizes = {"q_padding_interval_size": 16, "kv_padding_interval_size": 32}
    results = generate_batch(model, prompts, varlen_compile_config=CompileConfig(), **SMALL, **sizes)
    assert worst(model, prompts, results) < CLOSE


@pytest.mark.slow
def test_pages_of_another_scheme_are_dropped() -> None:
    """A persistent manager keeps pages of finished requests for later texts with the same prefix."""
    model = tiny_model("llama")
    prompt = prompts_of(model)[0]

    def again() -> float:
        plain = GenerationConfig(do_sample=False, max_new_tokens=NEW, eos_token_id=-1, pad_token_id=0)
        config = ContinuousBatchingConfig(max_batch_tokens=24, return_logprobs=True, **SMALL)
        kept = {"generation_config": plain, "continuous_batching_config": config, "persistent_manager": True}
        return worst(model, [prompt], list(model.generate_batch([prompt], **kept).values()))

    assert again() < CLOSE
    patch_model(model, "alibi", factor=4)
    assert again() < CLOSE
    assert again() < CLOSE
    unpatch_model(model)
    assert again() < CLOSE
    model.destroy_cached_continuous_batching_manager()


@pytest.mark.parametrize(
    ("scheme", "error", "message"),
    [("fox", BackendCannotCarry, "no room"), ("cable", BackendCannotCarry, "no room"),
     ("norm01", NeedsWholeText, "length of the text")],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_refused_in_the_thread_that_asks(scheme: str, error: type[Exception], message: str, backend: str) -> None:
    model = patched(scheme)
    model.set_attn_implementation(backend)
    with pytest.raises(error, match=message):
        generate_batch(model, prompts_of(model))
    assert model.config._attn_implementation == backend


def test_a_sliding_window_is_refused() -> None:
    model = patched("alibi")
    model.config.sliding_window = 16
    with pytest.raises(BackendCannotCarry, match="sliding window"):
        generate_batch(model, prompts_of(model))


def test_graphs_and_other_backends_are_refused() -> None:
    scheme = scheme_of(patched("alibi"))
    with pytest.raises(BackendCannotCarry, match="use_cuda_graph=False"):
        check_batched_scheme(scheme, "sdpa", windowed=False, graphs=True)
    with pytest.raises(BackendCannotCarry, match="auto_switch_to_flash=False"):
        check_batched_scheme(scheme, "flash_attention_3", windowed=False, graphs=False)
    for plain in ("yarn", "xpos"):  # computed by the model's own attention function, on any backend
        check_batched_scheme(scheme_of(patched(plain)), "flash_attention_3", windowed=True, graphs=True)


def test_inconsistent_positions_are_refused() -> None:
    borders = torch.tensor([0, 3, 5, 5])
    scheme = scheme_of(patched("alibi"))
    call = {"cu_seq_lens_q": borders, "cu_seq_lens_k": {"full_attention": torch.tensor([0, 3, 9, 9])}}
    first, second = requests_of(scheme, torch.tensor([[0, 1, 2, 4, 5, 0, 0]]), call)
    assert (first.start, first.rows, first.keys) == (0, slice(0, 3), slice(0, 3))
    assert (second.start, second.rows, second.keys) == (4, slice(3, 5), slice(3, 9))
    with pytest.raises(InvalidInput, match="goes on at position 7 after 4 cached"):
        requests_of(scheme, torch.tensor([[0, 1, 2, 7, 8]]), call)
