"""The how-to pages, run as a reader would: blocks in order, in one session and an empty folder, then the commands.

Models that a reader downloads are replaced by small ones, and their lengths by lengths in the same ratio; each page
says so. What a page claims of the lengths themselves is tested apart.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
import typing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from hf_posenc import disable_auto, load_starter
from hf_posenc.cli import main
from hf_posenc.starters.loading import starter_path

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
QWEN3 = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Page:
    """A page, the models it downloads, and what its lengths are replaced by."""

    name: str
    downloads: dict[str, str] = field(default_factory=dict)
    lengths: dict[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    novel: str = ""

    @property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.md").read_text(encoding="utf-8")

    @property
    def blocks(self) -> list[str]:
        return re.findall(r"^```python\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)

    @property
    def commands(self) -> list[str]:
        """But for findings, which take a minute each, and are run by tests of their own."""
        return re.findall(r"^\$ (?!python examples/findings/)(.*)$", self.text, re.MULTILINE)

    def replaced(self, text: str, folders: dict[str, str]) -> str:
        """The text with small models and lengths."""
        for name, kind in self.downloads.items():
            text = text.replace(name, folders[kind])
        for length, short in self.lengths.items():
            text = re.sub(rf"\b{length}\b", short, text)
        return text


PAGES = [
    Page(
        "real-model",
        {"smollm2-135m": "llama"},
        {"256": "32", "257": "33", "2048": "64", "8192": "256", "12288": "384", "16384": "512", "180_000": "110_000"},
        novel="ENG19090_Wells.txt",
    ),
    Page(
        "qwen3-128k",
        {"Qwen/Qwen3-0.6B": "qwen3"},
        {"131072": "1024", "128k": "1k", "65536": "512", "32768": "256", "40960": "320"},
    ),
    Page(
        "long-embeddings",
        {"BAAI/bge-small-en-v1.5": "bert"},
        {"512": "256", "2048": "1024"},
        ("sentence_transformers",),
    ),
    Page("endless-chat"),
    Page("from-scratch"),
]
BY_NAME = {page.name: page for page in PAGES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small models to take the place of downloads, by kind."""
    folder = tmp_path_factory.mktemp("models") / "qwen3"
    _, tokenizer = load_starter("llama")
    torch.manual_seed(0)
    config = Qwen3Config(**QWEN3, vocab_size=len(tokenizer), max_position_embeddings=320)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"qwen3": str(folder), "bert": str(starter_path("bert")), "llama": str(starter_path("llama"))}


def write_novel(page: Page) -> None:
    """Sources of the standard library, in place of the text that a page reads."""
    if page.novel:
        Path(page.novel).write_text("".join(Path(m.__file__).read_text() for m in (argparse, typing, inspect)))


def installed(block: str, page: Page) -> bool:
    """Whether this Python has the optional packages that a block imports."""
    return all(name not in block or find_spec(name) for name in page.optional)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run_in_order(page: Page, folders: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_novel(page)
    session: dict[str, Any] = {"__name__": "__main__"}
    try:
        blocks = [block for block in page.blocks if installed(block, page)]
        assert any("assert " in block for block in blocks), "a page that claims nothing proves nothing"
        for number, block in enumerate(blocks):
            exec(compile(page.replaced(block, folders), f"{page.name}-{number}", "exec"), session)
    finally:
        disable_auto()


def test_a_wrong_claim_is_noticed(folders: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    """Control: with another trained length the comparison with the card's parameters fails."""
    monkeypatch.chdir(tmp_path)
    page, session = BY_NAME["qwen3-128k"], {"__name__": "__main__"}
    wrong = "\n".join(page.blocks).replace("trained_length=32768, ", "")
    with pytest.raises(AssertionError):
        exec(compile(page.replaced(wrong, folders), page.name, "exec"), session)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "line"),
    [pytest.param(page, line, id=f"{page.name}-{line[:40]}") for page in PAGES for line in page.commands],
)
def test_commands_run(page: Page, line: str, folders: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    """With fewer documents where a command takes so many, as what is printed is not compared here."""
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(page.replaced(line, folders))
    if program == "python":
        words[0] = str(FOLDER.parents[1] / words[0])
        monkeypatch.syspath_prepend(str(Path(words[0]).parent))  # as Python does for a script
        monkeypatch.setattr(sys, "argv", [words[0], *words[1:-4], "--steps", "3", *words[-2:]])
        exec(
            compile(Path(words[0]).read_text(encoding="utf-8"), words[0], "exec"),
            {"__name__": "__main__", "__file__": words[0]},
        )
        return
    if words[0] in ("compare", "eval"):
        words += ["--samples", "2", *([] if "--tasks" in line else ["--set", "keys=1"])]
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
