"""Uploading to the Hub: refused before the work where it cannot succeed, and what is sent. No network is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner

from hf_posenc.checkpoints.hub import create_repository, upload
from hf_posenc.cli.app import app
from hf_posenc.errors import CannotUpload

from .conftest import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(None)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: found)
    return found


def test_a_run_is_sent_without_its_checkpoints_to_a_private_repository(hub: Hub, tmp_path: Path) -> None:
    for name in ("adapter_model.safetensors", "README.md", "checkpoint-20/optimizer.pt", "checkpoint-20/rng/0.pth"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert create_repository("model") == "ada/model"
    upload(tmp_path, "ada/model")
    assert hub.private
    assert sorted(hub.sent) == ["README.md", "adapter_model.safetensors"]


def test_a_failed_upload_keeps_the_folder_and_says_how_to_send_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(**_: Any) -> None:
        raise OSError("connection reset")

    monkeypatch.setattr(hub, "upload_folder", failing)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CannotUpload, match=f"connection reset.*hf upload ada/model {tmp_path}"):
        upload(tmp_path, "ada/model")
    assert (tmp_path / "config.json").exists()


def test_a_command_asks_before_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, as tests are: refused before anything is written."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["export", "--model", "starter:llama", "--out", str(tmp_path / "out"), "--push-to-hub", "ada/model"]
    result = CliRunner().invoke(app, [*words, "--scheme", "yarn", "--factor", "2"])
    assert isinstance(result.exception, CannotUpload)
    assert not (tmp_path / "out").exists()
