"""The lengths of a patch among its options, under the names that papers and other libraries give them."""

from __future__ import annotations

from typing import Any

from hf_posenc.errors import LengthContradiction

LENGTH_ALIASES = {
    "original_max": "trained_length",
    "pretraining_length": "trained_length",
    "train_length": "trained_length",
    "max_len": "target_length",
    "target": "target_length",
}


def take_lengths(options: dict[str, Any], **given: int | None) -> dict[str, int | None]:
    """The lengths given, with those taken out of ``options`` that stand there under another name.

    Args:
        options: of `patch_model`; aliases are removed.
        **given: ``trained_length`` and ``target_length``, in tokens.

    Raises:
        LengthContradiction: a length is given under two names.
    """
    for alias in sorted(LENGTH_ALIASES.keys() & options.keys()):
        name = LENGTH_ALIASES[alias]
        if given[name] is not None:
            raise LengthContradiction(f"{alias} is another name of {name}, and both are given. Give one of the two.")
        given[name] = options.pop(alias)
    return given
