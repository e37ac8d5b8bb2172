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


def test_each_name_has_options_of_its_own(asked: list, tmp_path: Path) -> None:
    """A revision of the model is none of its adapter, and the other way round."""
    of_model, of_adapter = {**OPTIONS, "revision": "v1"}, {**OPTIONS, "revision": "v2"}
    named = ModelName("owner/base", str(tmp_path), hub=of_model, adapter_hub=of_adapter)
    assert not copy_tokenizer(named, tmp_path)
    (tmp_path / TOKENIZER_FILES[0]).write_text("{}")
    assert not copy_tokenizer(named, tmp_path)
    with pytest.raises(OSError, match="not there"):
        tokenizer_of(ModelName("owner/base"))
    assert asked == [
        ("owner/base", {"trust_remote_code": False, **of_model}),
        (str(tmp_path), {"trust_remote_code": False, **OPTIONS}),
        ("owner/base", {"trust_remote_code": False}),
    ]
