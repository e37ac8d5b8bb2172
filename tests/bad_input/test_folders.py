"""Damaged and hostile model folders, drawn at random: each loads or is refused, and nothing is written."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hf_posenc
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import tokenizer_of
from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.errors import PosEncError

from .row import TWO_SENTENCES

FEW, MANY = 6, 120  # folders of a base
CONFIG, WEIGHTS, INDEX, GENERATION = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "generation_config.json",
)  # fmt: skip
VALUES: list[Any] = [
    *(None, True, -1, 0, 10**9, 10**30, 1.5, float("nan"), float("inf"), "", "x", "x" * 10_000),
    *("someone/kernel", [], [1, 2], [[[]]], {}, {"a": {"b": 1}}),
]
ADDED = (
    "attn_implementation", "auto_map", "dtype", "torch_dtype", "quantization_config", "rope_scaling", "id2label",
    "num_labels", "pruned_heads", "layer_types", "head_dim", "is_encoder_decoder", "generation_config", "text_config",
)  # fmt: skip
INDICES: list[Any] = [
    *({}, [], 5, None, {"weight_map": 5}, {"weight_map": {}}, {"weight_map": {"a": "../x"}}),
    *({"weight_map": {"a": ["x"]}}, {"weight_map": {"a": None}}, {"weight_map": {"a": WEIGHTS}}),
    {"metadata": {"total_size": "x"}, "weight_map": {"a": WEIGHTS}},
]


def entry(folder: Path, draw: random.Random) -> None:
    """An entry of the configuration is another, of another kind, new, or gone."""
    content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    name = draw.choice([*sorted(content), *ADDED])
    content[name] = draw.choice(VALUES)
    if draw.random() < 0.2:
        del content[name]
    (folder / CONFIG).write_text(json.dumps(content), encoding="utf-8")


def damaged(folder: Path, draw: random.Random) -> None:
    """A file is cut, noise, empty, in another encoding, a folder, a broken link, or gone."""
    file = folder / draw.choice([CONFIG, WEIGHTS, GENERATION])
    data = file.read_bytes() if file.exists() else b"{}"
    changes: list[Callable[[], object]] = [
        lambda: file.write_bytes(data[: draw.randrange(len(data))]),
        lambda: file.write_bytes(draw.randbytes(1000)),
        lambda: file.write_bytes(data.decode("latin-1").encode("utf-16")),
        lambda: (file.unlink(missing_ok=True), file.mkdir()),
        lambda: (file.unlink(missing_ok=True), file.symlink_to(folder / "nowhere")),
        lambda: file.unlink(missing_ok=True),
    ]
    draw.choice(changes)()


def indexed(folder: Path, draw: random.Random) -> None:
    """An index that names no file, or something else, next to the weights or in their place."""
    if draw.random() < 0.5:
        (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps(draw.choice(INDICES)), encoding="utf-8")


def add_sibling(folder: Path, draw: random.Random) -> None:
    """A file of another program lies next to the weights."""
    name = draw.choice(["adapter_config.json", "adapter_model.safetensors", "pytorch_model.bin", "chat_template.jinja"])
    (folder / name).write_bytes(draw.choice([b"", b"{}", b"junk", b"[]"]))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of every kind of model, with a scheme and without."""
    found = {}
    for name in ("llama", "gpt2", "bert"):
        for scheme in ("", "-patched"):
            model = tiny_model(name) if not scheme else hf_posenc.patch_model(tiny_model(name), "kerple", factor=2)
            found[name + scheme] = tmp_path_factory.mktemp(name + scheme)
            model.save_pretrained(found[name + scheme])
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() if file.is_file() else b"" for file in folder.iterdir()}


def loaded(base: Path, target: Path, seed: int) -> None:
    """Load a folder that is damaged in the way the seed draws."""
    draw = random.Random(seed)
    shutil.copytree(base, target)
    draw.choice([entry, entry, entry, damaged, indexed, add_sibling])(target, draw)
    before = contents(target)
    message = "Nothing is wrong. Go on."
    try:
        hf_posenc.from_pretrained(target)
    except PosEncError as error:
        message = str(error)
    assert TWO_SENTENCES.match(message), message
    assert len(message) < 2000
    assert contents(target) == before


@pytest.mark.parametrize("name", ["llama", "llama-patched", "gpt2-patched", "bert-patched"])
def test_some(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    for seed in range(FEW):
        loaded(bases[name], tmp_path / str(seed), seed)


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "llama-patched", "gpt2", "gpt2-patched", "bert", "bert-patched"])
@pytest.mark.parametrize("seed", range(1000, 1000 + MANY))
def test_many(name: str, seed: int, bases: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(0)
    loaded(bases[name], tmp_path / "case", seed)


def test_control_raw_errors_are_found(bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an error that is none of ours, and a file that appears."""

    def raw(target: Path) -> None:
        raise KeyError(target)

    monkeypatch.setattr(hf_posenc, "from_pretrained", raw)
    with pytest.raises(KeyError):
        loaded(bases["llama"], tmp_path / "raw", 0)
    monkeypatch.setattr(hf_posenc, "from_pretrained", lambda target: (target / "new").write_bytes(b"x"))
    with pytest.raises(AssertionError):
        loaded(bases["llama"], tmp_path / "new", 0)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "junk"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["a.B", "a.B"]}}'),
    ],
)
def test_tokenizers_of_commands(file: str, content: str, bases: dict[str, Path], tmp_path: Path) -> None:
    """Commands read a damaged tokenizer, or one with code of its own, as they read a damaged model."""
    folder = shutil.copytree(bases["llama"], tmp_path / "case")
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(PosEncError) as caught:
        tokenizer_of(ModelName.of(folder))
    assert TWO_SENTENCES.match(str(caught.value))
