"""Code, tests and documentation use the field's terms: words that were replaced must not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("hf_posenc", "patches", "eval", "tests", "docs", "examples", ".ci")
SUFFIXES = {".py", ".md", ".ipynb", ".toml", ".yaml", ".yml", ""}
# The prompts of passkey retrieval, which stored results depend on; stored checkpoints; this table; generated pages.
EXEMPT = (
    "eval/texts/passkey.py",
    "examples/hidden_numbers.py",
    "tests/golden/v1/",
    "tests/test_language.py",
    "docs/commands.md",
    "docs/schemes/",
)

# Pattern of a retired word: the standard term.
RETIRED = {
    r"(?i)\blaws?\b": "check",
    r"\b(class|checks\.|import) ?(Gap|Pair|LAWS)\b": "Deviation, Case, CHECKS",
    r"\b(KnownLimit|KNOWN_LIMITS)\b": "KnownDeviation, KNOWN_DEVIATIONS",
    r"(?i)\bmemoryless\b": "stateless",
    r"(?i)\bsecants?\b": "finite differences",
    r"(?i)\bside-cars?\b": "PEFT sidecar",
    r"(?i)\bpass keys?\b(?! is)": "passkey retrieval",
    r"(?i)\bnats a token\b": "cross-entropy loss (nats/token)",
    r"(?i)\b(radians|tokens|positions) a (token|turn|position)\b": "per token, per rotation",
    r"(?i)\bkey-value cache\b": "KV cache",
    r"(?i)\breread(s|ing)?\b": "re-rotation of cached keys",
    r"\b(query|key)_age\b": "query_decay_steps, key_decay_steps",
    r"\b(ctx\.carried|carried=)": "extra_key_channels",
    r"\b(gap\(\)|gradient_gaps)": "deviation, gradient_deviations",
    r"(?i)\bwho sees whom\b": "the attention mask, visible keys",
    r"(?i)\bas it comes\b": "the unpatched model",
    r"\bkeeps_host\b": "keeps_positions",
    r"\bundoing\b": "rollback",
    r"\b(says_nothing|hushed|host_of)\b": "hides_later_alone, suppress_output, base_model_of",
    r"\b_?turned\(": "rotated",
    r"\btold\(": "a name that says what is returned",
    r"\brotation\.forms\b": "core.rotation.layouts",
    r"\boracles[./]hosts\b": "oracles.models",
    r"side_car": "sidecar",
    r"\bSchemeBlock\b": "Block (of queries) or SchemeConfig (in config.json)",
    r"\b(SilentRotaryEmbedding|ForgettingLayer|ForgettingCache|GrowingCache)\b": "the name of what it does",
    r"\b(pair_turning|slowed_by_turns)\b": "pair_with_rotations, slowed_by_rotations",
}


def sources() -> Iterator[Path]:
    """Text files of the repository in which people read or write prose or code."""
    for path in (ROOT / "README.md", *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))):
        place = path.relative_to(ROOT).as_posix()
        generated = {"__pycache__", "_build"} & set(path.parts)
        if path.is_file() and path.suffix in SUFFIXES and not generated and not place.startswith(EXEMPT):
            yield path


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Contents of the sources, by path."""
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sources()}


@pytest.mark.parametrize("pattern", RETIRED)
def test_retired_words_do_not_come_back(pattern: str, texts: dict[str, str]) -> None:
    word = re.compile(pattern)
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in texts.items()
        for match in word.finditer(text)
    ]
    assert not found, f"Write {RETIRED[pattern]!r} instead: " + ", ".join(found)


def test_every_kind_of_source_is_read(texts: dict[str, str]) -> None:
    """Control: an empty search would pass."""
    assert {"README.md", "hf_posenc/errors.py", "eval/__init__.py", "docs/api.md", ".ci/run"} <= set(texts)


@pytest.mark.parametrize(
    ("text", "retired"),
    [("every Law holds", True), ("lawful", False), ("where the pass key lies", True), ("The pass key is 71432", False)],
)
def test_words_are_matched_as_a_whole(text: str, retired: bool) -> None:
    assert any(re.search(pattern, text) for pattern in RETIRED) == retired
