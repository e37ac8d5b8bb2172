"""Parsers of files on thousands of damaged inputs: only this package's errors are raised."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import hf_posenc
from hf_posenc.checkpoints.adapter_folder import read_position_parameters, read_sidecar
from hf_posenc.checkpoints.validate import check_folder
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.cli.arguments import scheme_options
from hf_posenc.errors import PosEncError
from hf_posenc.eval.comparison.run import STORE
from hf_posenc.eval.results.record import Record
from hf_posenc.eval.results.store import Store
from hf_posenc.eval.task_files import check_task_files
from hf_posenc.patching.preconditions.host_config import check_lengths_and_rotation
from hf_posenc.patching.stored.config_guard import unguard
from hf_posenc.patching.stored.peft_sidecar import (
    PARAMETERS,
    SIDECAR,
    read_json,
    write_sidecar,
)
from hf_posenc.patching.stored.scheme_config import SchemeConfig
from hf_posenc.schemes.entry import entries_of
from hf_posenc.training.resume import last_complete, start_run

SCHEME = {
    "format": 1,
    "layers": {"0": [{"name": "none", "options": {}}]},
    "trained_length": 32,
    "target_length": 64,
    "scheme": [{"name": "yarn", "options": {"beta_fast": 32.0, "ramp": "dim"}}],
    "host_length": 32,
}
CONFIG = {
    "model_type": "llama",
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "position_scheme": SCHEME,
    "position_scheme_guard": [["model_type", "llama"]],
}
ODD = [
    None,
    True,
    0,
    -1,
    2**40,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\x00",
    "../x",
    "os:system",
    [],
    {},
    [[]],
]

scalars = st.sampled_from(ODD) | st.integers() | st.floats()
values = scalars | st.lists(scalars, max_size=2) | st.fixed_dictionaries({"name": scalars, "options": scalars})


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


def only_ours(do: Callable[[], object]) -> None:
    """Run; what is refused is refused in our words."""
    with suppress(PosEncError):
        do()


many = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=150)


@many
@given(mutated(SCHEME))
def test_block(value: Any) -> None:
    only_ours(lambda: SchemeConfig.read(value, "here"))


@many
@given(mutated(CONFIG))
def test_configuration(value: Any) -> None:
    if isinstance(value, dict):
        only_ours(lambda: unguard(value, "here"))
        only_ours(lambda: check_lengths_and_rotation(value, "here"))
        only_ours(lambda: SchemeConfig.of_config(value, "here"))


@some
@given(bitten(json.dumps(CONFIG).encode()))
def test_configuration_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(data)
        only_ours(lambda: check_folder(folder))


@many
@given(bitten(json.dumps(SCHEME).encode()))
def test_sidecar_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SIDECAR).write_bytes(data)
        only_ours(lambda: read_sidecar(Path(folder)))


@many
@given(mutated(SCHEME | {"parameters_sha256": "0" * 64}))
def test_sidecar(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SIDECAR).write_text(json.dumps(value), encoding="utf-8")
        (Path(folder) / PARAMETERS).write_bytes(save({}))
        only_ours(lambda: read_sidecar(Path(folder)))
        only_ours(lambda: read_position_parameters(Path(folder)))


@some
@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "adapter_config.json"
        file.write_bytes(data)
        only_ours(lambda: read_json(file))


@many
@given(st.text(alphabet="yarn pi:=,+;[]{}\"'0.1e-\\\n\x00é", max_size=30))
def test_words_of_a_comparison(words: str) -> None:
    only_ours(lambda: entries_of(words))


@some
@given(st.lists(st.text(max_size=12), max_size=3))
def test_option_words(words: list[str]) -> None:
    only_ours(lambda: scheme_options("yarn", words))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of cells."""
    path = tmp_path_factory.mktemp("store") / STORE
    with Store(path) as made:
        for number in range(3):
            made.put(Record(f"{number}", "yarn", "posenc_ppl", 64, "done", "", [{"value": 1.0}], 0.1, {"a": number}))
    return path.read_bytes()


@settings(many, max_examples=200)
@given(data=st.data())
def test_store_file(store: bytes, data: st.DataObject) -> None:
    damaged = data.draw(bitten(store))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / STORE
        path.write_bytes(damaged)

        def read() -> None:
            with Store(path) as opened:
                for number in range(3):
                    opened.get(str(number))

        only_ours(read)


@some
@given(column=st.sampled_from(["rows", "settings", "state", "reason", "length", "digest"]), value=st.sampled_from(ODD))
def test_row_changed_by_hand(store: bytes, column: str, value: Any) -> None:
    if isinstance(value, (list, dict)) or (isinstance(value, int) and abs(value) > 2**62):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / STORE
        path.write_bytes(store)
        connection = sqlite3.connect(path)
        try:
            connection.execute(f"UPDATE cells SET {column} = ? WHERE key = '1'", (value,))
            connection.commit()
        except sqlite3.Error:
            return
        finally:
            connection.close()
        with Store(path) as opened:
            only_ours(lambda: opened.get("1"))


RUN_RECORD = {"length": 16, "steps": 3, "method": "lora", "scheme": SCHEME, "rows": 7, "eval_lengths": [16, 32]}
TASK = b"""include: other.yaml
task: mine
class: !function hf_posenc.eval.tasks.base.PerplexityTask
metadata: {version: 1.0, lengths: [32, 64]}
"""


@many
@given(bitten(json.dumps(RUN_RECORD).encode()))
def test_run_record(data: bytes) -> None:
    """``run.json`` and the manifest, which ``--resume`` reads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "checkpoint-1").mkdir()
        (folder / "run.json").write_bytes(data)
        (folder / "checkpoint-1" / "complete.json").write_bytes(data)
        only_ours(lambda: start_run(folder, RUN_RECORD, resume=True))
        assert last_complete(folder) is None


@many
@given(bitten(TASK))
def test_task_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.yaml").write_bytes(data)
        (Path(folder) / "other.yaml").write_text("metadata: {samples: 2}\n")
        only_ours(lambda: check_task_files(["mine"], folder))


@many
@given(bitten(save({"posenc.slopes": torch.ones(4)})))
def test_parameters_beside_a_sidecar(data: bytes) -> None:
    """Damaged before the digest was made, so that the reader of tensors meets it."""
    with tempfile.TemporaryDirectory() as folder:
        message = SCHEME | {"parameters_sha256": hashlib.sha256(data).hexdigest()}
        (Path(folder) / SIDECAR).write_text(json.dumps(message), encoding="utf-8")
        (Path(folder) / PARAMETERS).write_bytes(data)
        only_ours(lambda: read_position_parameters(Path(folder)))


@settings(many, max_examples=200)
@given(bitten(save({"model.norm.weight": torch.ones(4)})))
def test_weights_of_a_checkpoint(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (Path(folder) / "model.safetensors").write_bytes(data)
        only_ours(lambda: check_folder(folder))


def read_both(folder: Path) -> None:
    """What loading an adapter reads of a scheme."""
    read_sidecar(folder)
    read_position_parameters(folder)


def test_every_flipped_bit_of_a_sidecar(tmp_path: Path) -> None:
    """The first 4,096 bits of both files: 100 % are noticed."""
    model = hf_posenc.patch_model(tiny_model("llama"), "kerple")
    write_sidecar(model, tmp_path)
    assert read_sidecar(tmp_path) is not None, "control: unharmed, it is read"
    assert read_position_parameters(tmp_path)
    for name in (SIDECAR, PARAMETERS):
        whole = (tmp_path / name).read_bytes()
        for bit in range(min(4096, 8 * len(whole))):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(PosEncError):
                read_both(tmp_path)
        (tmp_path / name).write_bytes(whole)
