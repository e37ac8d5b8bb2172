"""Settings of a comparison in words: texts, options by length, trained lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def names_of(given: str | Sequence[str] | None) -> str:
    """Name a text, or several."""
    return given if isinstance(given, str) else ", ".join(given or ("the standard library",))


def chosen_options(chosen: Mapping[str, Mapping[str, Any]]) -> str:
    """Format options by length: ``granularity 64; multiplier 1 at 256, 2 at 512``."""
    parts = []
    for name in dict.fromkeys(name for options in chosen.values() for name in options):
        values = {length: option_text(options[name]) for length, options in chosen.items() if name in options}
        same = len(values) == len(chosen) and len(set(values.values())) == 1
        at = [f"{value} at {int(length):,}" for length, value in values.items()]
        parts.append(f"{name} {next(iter(values.values())) if same else ', '.join(at)}")
    return "; ".join(parts)


def option_text(value: Any) -> str:
    """Format the value of an option: ``2`` for 2.0."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def trained_lengths(about: Mapping[str, Any]) -> str:
    """Describe the trained lengths of the models."""
    lengths = {model["name"]: model["trained_length"] for model in about.get("models", ())}
    if len(lengths) < 2:
        return (
            f"The model's trained length (pre-training context length) is {about['trained_length']:,} tokens; all "
            "schemes use the same weights."
        )
    named = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
    shortest = "" if len(set(lengths.values())) == 1 else " Multiples are of the shortest."
    return f"Trained lengths (pre-training context lengths) in tokens: {named}.{shortest}"
