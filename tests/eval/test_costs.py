"""Costs of cells: the KV cache by hand, memory that is really taken, and files that stay equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hf_posenc import patch_model, unpatch_model
from hf_posenc.eval import compare
from hf_posenc.eval.comparison.measure import begin_peak, cache_per_token, costs_since
from hf_posenc.eval.report.tables import cost_table

from .conftest import TRAINED

pytest.importorskip("matplotlib")
SMALL: dict[str, Any] = {"samples": 2, "scored": 16, "lengths": [TRAINED, 2 * TRAINED], "tasks": ["posenc_ppl"]}


def test_the_cache_is_keys_and_values_of_every_layer(llama, bert) -> None:
    config = llama.config
    expected = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4  # float32
    assert cache_per_token(llama) == expected
    patch_model(llama, "yarn", factor=2)
    assert cache_per_token(llama) == expected
    unpatch_model(llama)
    patch_model(llama, "rerope", factor=2)  # near keys rotated by their position, and far ones by 0
    assert cache_per_token(llama) == expected * 3 / 2
    assert cache_per_token(bert) is None


def test_peak_memory_is_that_since_it_was_begun(llama) -> None:
    if not begin_peak(llama.device):
        pytest.skip("this system does not tell the peak of a part of a run")
    size = 200 << 20
    taken = torch.ones(size // 4)
    with_it = costs_since(llama, llama.device, measurable=True)
    del taken
    begin_peak(llama.device)
    after = costs_since(llama, llama.device, measurable=True)
    assert 0.8 * size < with_it.peak_memory - after.peak_memory < 1.5 * size
    assert after.memory_of == "process"


def test_costs_are_stored_and_written_apart(llama, tokenizer, tmp_path: Path) -> None:
    found = compare(llama, "unpatched,rerope", tokenizer=tokenizer, out=tmp_path, **SMALL)
    assert {record.scheme: record.costs.cache_per_token for record in found.records} == {
        "unpatched": 256.0, "rerope": 384.0,
    }  # fmt: skip
    head, table, *_ = cost_table(found)
    assert [line[0] for line in table] == ["unpatched", "rerope"]
    assert head[0] == "scheme"
    assert "seconds" not in (tmp_path / "results.json").read_text(encoding="utf-8")
    again = compare(llama, "unpatched,rerope", tokenizer=tokenizer, out=tmp_path, **SMALL)
    assert again.records == found.records
