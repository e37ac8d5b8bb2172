"""The card of a checkpoint: results as metadata of the Hub, and all that is uploaded. No network is used."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import yaml
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from hf_posenc import from_pretrained, load_starter, patch_model, unpatch_model
from hf_posenc.cli.app import app
from hf_posenc.errors import BadComparison
from hf_posenc.eval.results.rows import Row

from .conftest import FACTOR, Hub

ROWS = [
    Row("m", "yarn", "nll_sweep", 64, None, "nll", 2.5, 0.1, 20),
    Row("m", "yarn", "nll_sweep", 128, None, "nll", 2.25, 0.1, 20),
    Row("m", "yarn:beta_fast=16", "passkey", 64, None, "acc", 0.75, None, 8),
    Row("m", "yarn", "passkey", 64, 0.5, "acc", 1.0, None, 8),  # of one depth
    Row("m", "yarn", "nll_sweep", 256, None, "nll", math.inf, None, 1),
    Row("m", "unpatched", "nll_sweep", 64, None, "nll", 9.0, 0.1, 20),  # of another scheme
]


def index_of(folder: Path) -> set[tuple[Any, ...]]:
    """The numbers in a card's metadata, read by a parser of YAML alone."""
    data = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    (model,) = data["model-index"]
    return {
        (result["task"]["type"], result["dataset"]["name"], result["dataset"]["config"], one["type"], one["value"])
        for result in model["results"]
        for one in result["metrics"]
    }


def test_results_become_metadata_that_the_hub_reads(make_model, tmp_path: Path) -> None:
    model = patch_model(make_model("llama"), "yarn", factor=FACTOR)
    model.save_pretrained(tmp_path, results=ROWS)
    task = "text-generation"
    assert index_of(tmp_path) == {
        (task, "nll_sweep", "64 tokens", "nll", 2.5),
        (task, "nll_sweep", "128 tokens", "nll", 2.25),
        (task, "passkey", "64 tokens", "acc", 0.75),
    }
    card = ModelCard.load(tmp_path / "README.md")  # the Hub's own reader
    assert {result.metric_name for result in card.data.eval_results} >= {"nll at 64 tokens, 20 documents"}
    assert "hf_posenc.from_pretrained" in card.text
    before = (tmp_path / "README.md").read_text()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == before


@pytest.mark.parametrize("what", ["comparison", "file", "folder"])
def test_results_are_read_wherever_they_are(what: str, make_model, tmp_path: Path) -> None:
    rows = {"rows": [asdict(row) for row in ROWS]}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "curve.json").write_text("[1, 2]")
    (tmp_path / "results" / "results.json").write_text(json.dumps(rows))
    given = {
        "comparison": SimpleNamespace(rows=ROWS), "file": tmp_path / "results" / "results.json",
        "folder": tmp_path / "results",
    }[what]  # fmt: skip
    model = patch_model(make_model("llama"), "yarn", factor=FACTOR)
    model.save_pretrained(tmp_path / "out", results=given)
    assert len(index_of(tmp_path / "out")) == 3


def test_results_of_another_scheme_are_refused_and_nothing_is_written(make_model, tmp_path: Path) -> None:
    model = patch_model(make_model("llama"), "pi", factor=FACTOR)
    with pytest.raises(BadComparison, match="'pi'"):
        model.save_pretrained(tmp_path / "out", results=ROWS)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_results_that_lie_beside_a_model_go_into_what_is_exported(tmp_path: Path) -> None:
    model = from_pretrained("starter:llama", scheme="yarn", factor=FACTOR)
    model.save_pretrained(tmp_path / "run")
    load_starter("llama")[1].save_pretrained(tmp_path / "run")
    (tmp_path / "run" / "results.json").write_text(json.dumps({"rows": [asdict(row) for row in ROWS]}))
    for to in ("transformers", "bundle"):
        words = ["export", "--model", str(tmp_path / "run"), "--to", to, "--out", str(tmp_path / to)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert len(index_of(tmp_path / to)) == 3
        assert json.loads((tmp_path / to / "tokenizer_config.json").read_text())["model_max_length"] == 256 * FACTOR
        assert (tmp_path / to / "generation_config.json").exists()
    assert (tmp_path / "bundle" / "modeling_hf_posenc.py").exists()


@pytest.mark.parametrize("there", [False, True])
def test_everything_is_uploaded_and_a_card_that_is_there_is_kept(
    there: bool, make_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' own method writes another card over it."""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    hub = Hub(str(tmp_path / "README.md") if there else None)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: hub)
    model = patch_model(make_model("llama"), "yarn", factor=FACTOR)
    assert model.push_to_hub("ada/long", results=ROWS, code="bundle", tags=["long"]) == "of ada/long"
    names = {"config.json", "model.safetensors", "README.md", "hf_posenc_code.py", "modeling_hf_posenc.py"}
    assert names <= hub.sent.keys()
    card = ModelCard(hub.sent["README.md"].decode())
    assert 'from_pretrained("ada/long", trust_remote_code=True)' in card.text
    assert {"long", "hf_posenc"} <= set(card.data.tags)
    assert len(card.data.eval_results) == 3
    assert ("# Mine" in card.text) is there
    assert (card.data.license == "mit") is there
    unpatch_model(model)
    assert "push_to_hub" not in vars(model)
