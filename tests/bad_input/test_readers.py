"""Parsers of files on thousands of damaged inputs: only this package's errors are raised."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import hf_posenc
from hf_posenc.checkpoints.adapter_folder import AdapterFolder
from hf_posenc.checkpoints.model_name import ModelName, last_complete
from hf_posenc.checkpoints.tokenizer import tokenizer_found, tokenizer_of
from hf_posenc.checkpoints.validate import check_folder
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import CheckpointMismatch, PosEncError
from hf_posenc.patching.config_guard import unguard
from hf_posenc.patching.host_config import check_lengths_and_rotation
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR, write_sidecar
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.training.run_folder import start_run

SCHEME = {
    "format": 1, "layers": {"0": [{"name": "none", "options": {}}]}, "trained_length": 32, "target_length": 64,
    "scheme": [{"name": "yarn", "options": {"beta_fast": 32.0, "ramp": "dim"}}], "host_length": 32,
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "max_position_embeddings": 64, "position_scheme": SCHEME,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "position_scheme_guard": [["model_type", "llama"]],
}  # fmt: skip
RUN_RECORD = {"length": 16, "steps": 3, "method": "lora", "scheme": SCHEME, "rows": 7, "eval_lengths": [16, 32]}
ODD = [None, True, 0, -1, 2**40, 10**400, 1e308, float("nan"), "", "\x00", "../x", "os:system", [], {}, [[]]]

scalars = st.sampled_from(ODD) | st.integers() | st.floats()
values = scalars | st.lists(scalars, max_size=2) | st.fixed_dictionaries({"name": scalars, "options": scalars})
many = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in paths(one, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def mutated(draw: st.DrawFn, original: Any) -> Any:
    """A JSON value with one to three places changed."""
    for _ in range(draw(st.integers(1, 3))):
        original = replaced(original, draw(st.sampled_from(paths(original))), draw(values))
    return original


@st.composite
def bitten(draw: st.DrawFn, original: bytes) -> bytes:
    """Bytes with a few cut, changed or put in."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(original)))
        stop = draw(st.integers(start, min(len(original), start + 40)))
        original = original[:start] + draw(st.binary(max_size=12)) + original[stop:]
    return original


def foreign_error(do: Callable[[], object]) -> Exception | None:
    """Run; the error that is none of this package's, if there is one."""
    try:
        do()
    except PosEncError:
        return None
    except Exception as error:
        return error
    return None


@many
@given(mutated(CONFIG))
def test_configuration(value: Any) -> None:
    if isinstance(value, dict):
        assert foreign_error(lambda: unguard(value, "here")) is None
        assert foreign_error(lambda: check_lengths_and_rotation(value, "here")) is None
        assert foreign_error(lambda: SchemeConfig.of_config(value, "here")) is None


@many
@given(bitten(json.dumps(CONFIG).encode()), bitten(save({"model.norm.weight": torch.ones(4)})))
def test_folder_of_a_model(config: bytes, weights: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(config)
        (Path(folder) / "model.safetensors").write_bytes(weights)
        assert foreign_error(lambda: check_folder(folder)) is None


def read_both(folder: str | Path) -> dict[str, torch.Tensor]:
    """What loading an adapter reads of a scheme."""
    return AdapterFolder.open(folder).position_parameters()


@many
@given(mutated(SCHEME | {"parameters_sha256": "0" * 64}))
def test_sidecar(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SIDECAR).write_text(json.dumps(value), encoding="utf-8")
        (Path(folder) / PARAMETERS).write_bytes(save({}))
        assert foreign_error(lambda: read_both(folder)) is None


@many
@given(bitten(json.dumps(RUN_RECORD).encode()))
def test_run_record(data: bytes) -> None:
    """``run.json`` and the manifest, which ``--resume`` reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "checkpoint-1").mkdir()
        (folder / "run.json").write_bytes(data)
        (folder / "checkpoint-1" / "complete.json").write_bytes(data)
        assert foreign_error(lambda: start_run(folder, RUN_RECORD, resume=True)) is None
        assert last_complete(folder) is None


@pytest.mark.parametrize(
    ("file", "content"),
    [("tokenizer.json", "junk"), ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["a.B", "a.B"]}}')],
)
def test_tokenizers_of_commands(file: str, content: str, saved: dict[str, Path], tmp_path: Path) -> None:
    """A damaged tokenizer, or one with code of its own, is refused as a damaged model is."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((saved["plain"] / name).read_bytes())
    (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(PosEncError):
        tokenizer_of(ModelName.of(tmp_path))


def test_an_export_never_leaves_a_damaged_tokenizer_out(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(saved["plain"], tmp_path / "model")
    assert tokenizer_found(ModelName.of(folder)) is None, "control: it has none"
    (folder / "tokenizer.json").write_text('{"version": ', encoding="utf-8")
    with pytest.raises(CheckpointMismatch, match=r"The tokenizer of .* cannot be loaded"):
        tokenizer_found(ModelName.of(folder))


@pytest.mark.slow
def test_every_flipped_bit_of_a_sidecar(tmp_path: Path) -> None:
    """The first 4,096 bits of both files: 100 % are noticed."""
    write_sidecar(hf_posenc.patch_model(tiny_model("llama"), "kerple"), tmp_path)
    assert read_both(tmp_path), "control: unharmed, it is read"
    for name in (SIDECAR, PARAMETERS):
        whole = (tmp_path / name).read_bytes()
        for bit in range(min(4096, 8 * len(whole))):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(PosEncError):
                read_both(tmp_path)
        (tmp_path / name).write_bytes(whole)
