"""Every bad input of the table: its own error, two sentences, an exit code, nothing written, the model bit-equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_posenc import errors
from hf_posenc.checks.forward import random_tokens
from hf_posenc.checks.life_cycle import differences, snapshot
from hf_posenc.checks.tiny_models import TRAINED_LENGTH
from hf_posenc.cli.errors import FAILED, USAGE, end

from . import adapters, api, calls, config, configurations, weights, wrapped
from .row import TWO_SENTENCES, Row, Scene


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


@each(*api.rows(), *calls.rows(), *configurations.rows(), *wrapped.rows())
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


@each(*adapters.rows())
def test_adapter_is_refused(
    row: Row, with_adapter: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = row.model()
    before = snapshot(model, random_tokens(model, TRAINED_LENGTH))
    assert refused(row, Scene(tmp_path / "out", with_adapter, tmp_path, model), capsys) in (FAILED, USAGE)
    assert differences(before, snapshot(model, random_tokens(model, TRAINED_LENGTH))) == (0.0, "nothing")
