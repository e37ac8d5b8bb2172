"""A tokenizer is loaded with the options of the Hub that its model is loaded with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hf_posenc.checkpoints.model_name import TOKENIZER_FILES, ModelName
from hf_posenc.checkpoints.tokenizer import copy_tokenizer, tokenizer_of

OPTIONS = {"token": "secret", "cache_dir": "cache"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What `AutoTokenizer.from_pretrained` is called with; it finds nothing."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def record(name: str, **options: Any) -> Any:
        calls.append((name, options))
        raise OSError(f"{name} is not there")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", record)
    return calls


def test_of_the_model_with_the_revision_that_its_adapter_names(asked: list, tmp_path: Path) -> None:
    assert not copy_tokenizer(ModelName("owner/base", str(tmp_path), hub={**OPTIONS, "revision": "v1"}), tmp_path)
    assert asked == [("owner/base", {"trust_remote_code": False, **OPTIONS, "revision": "v1"})]


def test_a_revision_of_the_model_is_none_of_its_adapter(asked: list, tmp_path: Path) -> None:
    (tmp_path / TOKENIZER_FILES[0]).write_text("{}")
    assert not copy_tokenizer(
        ModelName("owner/base", str(tmp_path), adapter_hub={**OPTIONS, "revision": "v1"}), tmp_path
    )
    assert asked == [(str(tmp_path), {"trust_remote_code": False, **OPTIONS})]


def test_without_options(asked: list) -> None:
    with pytest.raises(OSError, match="not there"):
        tokenizer_of(ModelName("owner/base"))
    assert asked == [("owner/base", {"trust_remote_code": False})]
