"""Every bad input, and every option: its own error, two sentences, nothing written, the model bit-equal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hf_posenc
from hf_posenc import describe, errors, is_patched, patch_model, unpatch_model
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, tiny_model
from hf_posenc.cli.errors import FAILED, USAGE, end
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import list_schemes

from . import adapters, api, calls, config, configurations, weights
from .row import INF, NAN, TWO_SENTENCES, Row, Scene


def each(*rows: Row) -> pytest.MarkDecorator:
    """One case a row."""
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


def refused(row: Row, scene: Scene, capsys: pytest.CaptureFixture[str]) -> object:
    """The exit code of a bad input, after which everything must be so that has to."""
    scene.folder.mkdir()
    capsys.readouterr()
    with pytest.raises(row.error, match=row.key or None) as caught:
        row.act(scene)
    message = str(caught.value)
    assert isinstance(caught.value, errors.PosEncError)
    assert TWO_SENTENCES.match(message), message
    assert len(message) < 2000, message
    assert all(c.isprintable() or c == "\n" for c in message), message
    with pytest.raises(SystemExit) as ended:
        end(caught.value)
    assert list(scene.folder.iterdir()) == []
    return ended.value.code


@each(*api.rows(), *calls.rows(), *configurations.rows(), *adapters.rows())
def test_the_model_is_left_unchanged(
    row: Row,
    saved: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.chdir(tmp_path)
    model = row.model()
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    assert refused(row, Scene(tmp_path / "out", saved, tmp_path, model), capsys) in (FAILED, USAGE)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")


@each(*config.rows(), *weights.rows())
def test_checkpoint_is_refused(
    row: Row, saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(row, Scene(tmp_path / "out", saved, tmp_path), capsys) in (FAILED, USAGE)


NO_OPTION: list[Any] = [NAN, INF, 1e300, 2**31, object(), {"a": 1}, [NAN], "\x1b[31m", -5, True]
MODELS = {name: tiny_model(name) for name in ("llama", "gpt2")}
BUILT_IN = [record for record in list_schemes() if record.options and record.target.startswith("hf_posenc.")]


@pytest.mark.parametrize("record", BUILT_IN, ids=lambda record: record.name)
def test_a_value_of_another_kind_is_refused(record: SchemeRecord) -> None:
    model = MODELS["gpt2" if "table" in record.needs else "llama"]
    for name, (kind, _) in record.options.items():
        for value in NO_OPTION:
            any_sign = value == -5 and kind in ("number", "number or None")
            if any_sign or (value is True and "True or False" in kind) or (isinstance(value, str) and kind == "text"):
                continue
            with pytest.raises((errors.OptionOutOfRange, errors.UnknownOption), match=name) as caught:
                hf_posenc.patch_model(model, record.name, **{name: value})
            assert TWO_SENTENCES.match(str(caught.value))
            assert not hf_posenc.is_patched(model)


@pytest.mark.parametrize(("name", "scheme"), [("llama", "yarn"), ("llama", "kerple"), ("gpt2", "t5")])
def test_meta_device_defers_the_proof(name: str, scheme: str) -> None:
    """Nothing can be run: the report says that nothing was proven, and every new parameter is on meta as well."""
    model = patch_model(tiny_model(name).to("meta"), scheme)
    assert describe(model).proof.verdict == "deferred"
    assert all(weight.is_meta for weight in model.parameters())
    unpatch_model(model)
    assert not is_patched(model)


@pytest.mark.parametrize("scheme", ["yarn", "t5", "transformer_xl"])
def test_quantised_layers_are_patched(scheme: str) -> None:
    """Dynamic int8, whose layers have no parameters: the same numbers whether patched or quantised first."""
    quantise = partial(torch.ao.quantization.quantize_dynamic, qconfig_spec={nn.Linear}, dtype=torch.qint8)
    ids = random_tokens(tiny_model("llama"), 40)
    torch.manual_seed(0)
    before = patch_model(quantise(tiny_model("llama")), scheme, factor=4)
    torch.manual_seed(0)
    after = quantise(patch_model(tiny_model("llama"), scheme, factor=4))
    assert torch.equal(before(ids).logits, after(ids).logits)
    assert describe(before).proof.verdict == "moved"
