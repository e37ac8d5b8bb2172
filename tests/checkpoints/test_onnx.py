"""ONNX through transformers' own exporter: patched models at lengths that were not traced, and with a KV cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch

from hf_posenc import export, patch_model
from hf_posenc.checkpoints import onnx_file
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import MissingPackage, NotExpressible

pytestmark = pytest.mark.slow
CACHED = ("yarn", "rerope", "t5", "dynamic_ntk", "fox", "transformer_xl", "binary")
TOLERANCE = 1e-4  # two float32 implementations of logits of about 1 to 4
READ = """
import sys
sys.modules["hf_posenc"] = None
from transformers.exporters.base import ExportedModel
print(ExportedModel.from_pretrained(sys.argv[1]))
"""


@pytest.fixture
def ort() -> Any:
    pytest.importorskip("transformers.exporters", reason="this transformers has no exporters")
    missing = "what writes ONNX is not installed (it is in the extra test)"
    return [pytest.importorskip(name, reason=missing) for name in ("onnxscript", "onnxruntime")][1]


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 96, (rows, length), generator=torch.Generator().manual_seed(length + 1000))


def patched(family: str, scheme: str) -> Any:
    return patch_model(tiny_model(family), scheme, factor=4)


@pytest.mark.parametrize("case", ["llama:window", "bert:rope", "bert:dynamic_ntk"])
def test_whole_texts(ort: Any, case: str, tmp_path: Path) -> None:
    """Two rows, one of them padded; of a scheme whose cache drops keys, the reason is said."""
    model = patched(*case.split(":"))
    written = export(model, tmp_path, to="onnx").written["onnx"]
    assert (written["cache"], bool(written["reason"])) == (False, case == "llama:window")
    text = tokens(2, 77)
    mask = (torch.arange(77) >= torch.tensor([[13], [0]])).long()
    session = ort.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(["logits"], {"input_ids": text.numpy(), "attention_mask": mask.numpy()})
    expected = model(text, attention_mask=mask).logits.detach()
    assert (torch.from_numpy(logits) - expected)[mask.bool()].abs().max() < TOLERANCE


@pytest.mark.parametrize("case", [*(f"llama:{one}" for one in CACHED), "gpt2:alibi"])
def test_a_cache_that_is_empty_at_first(ort: Any, case: str, tmp_path: Path) -> None:
    """Three rows in pieces, what is cached handed on, as far as the target length; one graph for all of them."""
    model = patched(*case.split(":"))
    assert export(model, tmp_path, to="onnx").written["onnx"]["cache"]
    session, text = ort.InferenceSession(tmp_path / "model.onnx"), tokens(3, 128)
    expected, past = model(text).logits.detach().numpy(), 0
    inputs = {one.name: one.shape for one in session.get_inputs()}
    held: dict[str, Any] = {}
    for name, (_, heads, *rest) in inputs.items():  # numbers of tokens have no heads
        if name.startswith("input."):
            held[name] = np.zeros((3, int(heads), 0, int(rest[1])), np.float32) if rest else np.zeros((3, 0), np.int64)
    for end in (40, 45, 46, 47, 128):
        given = {"input_ids": text[:, past:end].numpy(), "position_ids": np.tile(np.arange(past, end), (3, 1))}
        found = session.run(None, {name: value for name, value in (given | held).items() if name in inputs})
        found = dict(zip((one.name for one in session.get_outputs()), found, strict=True))
        assert np.abs(found.pop("logits") - expected[:, past:end]).max() < TOLERANCE
        held = {f"input.{name.removeprefix('output.')}": value for name, value in found.items()}
        past = end


def test_transformers_reads_the_folder_without_this_package(ort: Any, tmp_path: Path) -> None:
    """The exporter's own folder has the guarded configuration, and is refused. The model keeps its modes."""
    model = patched("llama", "yarn").train()
    model.lm_head.eval()  # frozen
    export(model, tmp_path, to="onnx")
    assert (model.training, model.lm_head.training) == (True, False)
    assert "onnx" in subprocess.check_output([sys.executable, "-c", READ, str(tmp_path)], text=True)


def test_another_graph_is_not_kept(ort: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: what is traced is the model without its scheme."""
    monkeypatch.setattr(onnx_file, "traced", lambda _, of=onnx_file.traced: of(tiny_model("bert")))
    with pytest.raises(NotExpressible):
        export(patched("bert", "rope"), tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()


def test_what_draws_positions_is_refused(ort: Any, tmp_path: Path) -> None:
    with pytest.raises(NotExpressible, match="randpos"):
        export(patched("llama", "randpos"), tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("act", [torch.special.bessel_j0, lambda x: x if x.sum() > 0 else -x])
def test_what_torch_cannot_write_is_refused(ort: Any, act: Any, tmp_path: Path) -> None:
    """A function that ONNX does not have, and one that looks at values."""
    model = patched("bert", "rope")
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn.forward = act
    with pytest.raises(NotExpressible, match="torch cannot write"):
        export(model, tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("state", ["offloaded", "bfloat16"])
def test_the_state_that_is_refused_is_named(ort: Any, state: str, tmp_path: Path) -> None:
    model = patched("llama", "yarn")
    model.bfloat16() if state == "bfloat16" else accelerate.cpu_offload(model, "cpu")
    with pytest.raises(NotExpressible, match=state):
        export(model, tmp_path / "out", to="onnx")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackage):
        export(patched("llama", "yarn"), tmp_path, to="onnx")
