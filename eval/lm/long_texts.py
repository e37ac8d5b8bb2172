"""Texts longer than a model reads are what is measured here: they are cut into windows after they were tokenized."""

from __future__ import annotations

from typing import Any

WARNED = "sequence-length-is-longer-than-the-specified-maximum"  # transformers' key of a warning that it gives once


def expect_long_texts(tokenizer: Any) -> None:
    """Keep transformers from warning that a text is too long for the model, which it never sees whole."""
    tokenizer.deprecation_warnings[WARNED] = True
