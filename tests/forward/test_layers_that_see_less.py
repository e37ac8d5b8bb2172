"""Layers that see a window or a chunk of the keys: in traces, behind caches that drop keys, and as layers to extend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn
from transformers import DynamicCache

from hf_posenc import patch_model

from ..families.tiny import tiny, tokens

OPTIONS: dict[str, dict[str, Any]] = {
    "yarn": {"factor": 4}, "sinks": {"sinks": 2, "recent": 10}, "window": {"size": 10},
    "lm_infinite": {"n_global": 2, "n_local": 10},
}  # fmt: skip


MODELS: dict[str, Callable[[], Any]] = {
    "a window in every layer": lambda: tiny("mistral", sliding_window=8),
    "windows and layers without": lambda: tiny("gemma3_text", sliding_window=8),
    "windows and layers without positions": lambda: tiny("cohere2", sliding_window=8),
    "chunks": lambda: llama4(),
    "an encoder": lambda: tiny("modernbert", masked=True, local_attention=8, global_attn_every_n_layers=3),
}


def llama4() -> Any:
    return tiny("llama4_text", attention_chunk_size=16)


class Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.call = {} if "MaskedLM" in type(model).__name__ else {"use_cache": False}

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, **self.call).logits


def compiled(module: nn.Module, ids: Tensor) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()  # a test compiles the forward of the same class again
    return torch.compile(module, backend="eager", fullgraph=True)


TRACES: dict[str, Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]] = {
    "compile": compiled,
    "export": lambda module, ids: torch.export.export(module, (ids,)).module(),
    "jit": lambda module, ids: torch.jit.trace(module, (ids,), check_trace=False),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("trace", [pytest.param("compile", marks=pytest.mark.slow), "export", "jit"])
@pytest.mark.parametrize("scheme", ["yarn", "alibi"])
@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_a_trace_keeps_what_layers_do_not_see(model: str, scheme: str, trace: str) -> None:
    """Without a mask of the caller: transformers makes one while tracing, which hides more than later tokens."""
    if trace == "compile" and Version(torch.__version__) < Version("2.13"):
        pytest.skip("older compilers recurse in attributes of models of these families (docs/limits.md)")
    module, ids = Logits(patch_model(MODELS[model](), scheme, **OPTIONS.get(scheme, {}))), tokens(40, rows=1)
    expected = module(ids)
    torch.testing.assert_close(TRACES[trace](module, ids)(ids), expected, atol=2e-4, rtol=1e-3)


@torch.no_grad()
def test_a_part_that_extends_nothing_takes_no_extension_along() -> None:
    """Sinks are in all layers, and without effect at first: what layers with a window see is as with no sinks."""
    ids, named = tokens(100, rows=1), MODELS["windows and layers without"]
    alone, with_sinks = (
        patch_model(named(), name, factor=4, window=3) for name in ("jet_long", "jet_long+sink_logits")
    )
    assert [layer.self_attn.scheme.shown_name for layer in with_sinks.model.layers].count("host+sink_logits") > 0
    torch.testing.assert_close(with_sinks(ids).logits, alone(ids).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_lost_window_would_be_seen() -> None:
    """Negative control: the same weights without it."""
    windowed, without = (
        MODELS["a window in every layer"](),
        tiny("mistral", sliding_window=None),
    )
    assert (Logits(windowed)(tokens(40, rows=1)) - Logits(without)(tokens(40, rows=1))).abs().max() > 0.1


@pytest.mark.parametrize("scheme", ["host", *OPTIONS])
@pytest.mark.parametrize("at_once", [1, 7])
@torch.no_grad()
def test_chunks_behind_a_cache_are_those_of_the_whole_text(scheme: str, at_once: int) -> None:
    model = patch_model(llama4(), scheme, **OPTIONS.get(scheme, {}))
    whole, cache = model(tokens(40, rows=1), use_cache=False).logits, DynamicCache()
    parts = [model(part, past_key_values=cache).logits for part in tokens(40, rows=1).split(at_once, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("scheme", ["sinks", "yarn"])
@torch.no_grad()
def test_chunks_begin_behind_the_padding_of_a_row(scheme: str) -> None:
    model = patch_model(llama4(), scheme, **OPTIONS[scheme])
    alone, cache, pads = model(tokens(40, rows=1), use_cache=False).logits[0], DynamicCache(), 5
    mask = torch.ones(2, 40 + pads, dtype=torch.long)
    mask[0, :pads] = 0
    padded = torch.cat([tokens(40, rows=1)[:, :pads], tokens(40, rows=1)], dim=1)
    ids, positions = torch.cat([padded, padded.roll(-pads, 1)]), (mask.cumsum(-1) - 1).clamp(min=0)
    parts = [
        model(
            ids[:, at : at + 1], attention_mask=mask[:, : at + 1], position_ids=positions[:, at : at + 1],
            past_key_values=cache,
        ).logits
        for at in range(40 + pads)
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(parts, dim=1)[0, pads:], alone, atol=2e-4, rtol=1e-3)
