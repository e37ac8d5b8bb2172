"""ONNX through transformers' own exporter: patched models at lengths that were not traced, and with a KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.errors import NotTraceable

ort = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is not installed (pip install onnx onnxscript onnxruntime)"
)
exporters = pytest.importorskip("transformers.exporters", reason="this transformers has no exporters")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytestmark = pytest.mark.slow

TRACED, UNTRACED = 29, (7, TRAINED_LENGTH + 8, 4 * TRAINED_LENGTH - 7)
TOLERANCE = 1e-4  # two float32 implementations of logits of about 1 to 4


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 96, (rows, length), generator=torch.Generator().manual_seed(length))


def patched(family: str, scheme: str) -> Any:
    return patch_model(tiny_model(family), scheme, factor=4)


@pytest.mark.parametrize("case", ["llama:yarn", "llama:rerope", "llama:sinks", "gpt2:alibi", "bert:rope"])
def test_lengths_that_were_not_traced(case: str, tmp_path: Path) -> None:
    """Of two rows traced, one row computed, so that the batch is dynamic as well."""
    model = patched(*case.split(":"))
    model.config.use_cache = False
    traced = tokens(2, TRACED)
    inputs = {"input_ids": traced, "attention_mask": torch.ones_like(traced)}
    exporters.OnnxExporter().export(model, inputs, exporters.OnnxConfig(dynamic=True)).save_pretrained(tmp_path)
    session = ort.InferenceSession(next(tmp_path.glob("*.onnx")))
    for length in UNTRACED:
        text = tokens(1, length)
        (logits,) = session.run(
            ["logits"], {"input_ids": text.numpy(), "attention_mask": np.ones((1, length), np.int64)}
        )
        assert np.abs(logits - model(text).logits.detach().numpy()).max() < TOLERANCE


@pytest.mark.parametrize("scheme", ["yarn", "alibi", "t5", "dynamic_ntk", "rerope", "fox"])
def test_cached_decoding(scheme: str, tmp_path: Path) -> None:
    """A text in three kinds of pieces, what is cached handed on, as far as the target length."""
    model = patched("llama", scheme)
    model.generation_config.pad_token_id = 0
    traced = tokens(2, TRACED)
    inputs = {"input_ids": traced, "attention_mask": torch.ones_like(traced)}
    exporters.OnnxExporter().export_for_generation(
        model, inputs, exporters.OnnxConfig(dynamic=True), multi_token_decode=True
    ).save_pretrained(tmp_path)
    sessions = {name: ort.InferenceSession(tmp_path / f"{name}.onnx") for name in ("prefill", "decode")}
    text = tokens(1, 70)
    expected, held, past = model(text).logits.detach().numpy(), {}, 0
    for end in (40, 45, *range(46, 71)):
        session = sessions["decode" if past else "prefill"]
        numbers = np.arange(past, end)[None]
        given = {"input_ids": text[:, past:end].numpy(), "position_ids": numbers, **held}
        given["attention_mask"] = np.ones((1, end), np.int64)
        names = {one.name for one in session.get_inputs()}
        found = session.run(None, {name: value for name, value in given.items() if name in names})
        found = dict(zip((one.name for one in session.get_outputs()), found, strict=True))
        logits = found.pop("logits")
        assert np.abs(logits - expected[:, end - logits.shape[1] : end]).max() < TOLERANCE
        held = {f"input.{name.removeprefix('output.')}": value for name, value in found.items()}
        past = end


def test_a_cache_that_drops_keys_is_refused() -> None:
    model = patched("llama", "window")
    model.generation_config.pad_token_id = 0
    with pytest.raises(RuntimeError) as refused:
        exporters.DynamoExporter().export_for_generation(
            model, {"input_ids": tokens(2, TRACED)}, exporters.DynamoConfig(dynamic=True), multi_token_decode=True
        )
    assert isinstance(refused.value.__cause__, NotTraceable)
