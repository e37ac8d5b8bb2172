"""Validate the arguments of an evaluation before a model is loaded or a file written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.errors import (
    BadComparison,
    FolderUnusable,
    UnknownOption,
    WrongKind,
    nearest,
    shown,
)
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.tasks.parse import depths_of, lengths_of, listed, longest_of, seed_of, whole
from hf_posenc.eval.tasks.sweep import PARTICULAR, Sweep
from hf_posenc.schemes.entry import json_or_text


def check_measure(
    *, lengths: Any, depths: Any, seed: Any, limit: Any, longest: Any = None, **counts: Any
) -> tuple[list[int], dict[str, Any]]:
    """Validate and return lengths (none for the model's own) and the other settings of tasks.

    Raises:
        TaskOptionOutOfRange: one is out of range.
    """
    wanted = list(lengths_of(lengths)) if listed(lengths) else []
    measure: dict[str, Any] = {name: whole(name, value) for name, value in counts.items()}
    measure |= {"depths": list(depths_of(depths)), "seed": seed_of(seed)}
    measure["limit"] = None if limit is None else whole("limit", limit)
    if longest is not None:
        longest_of(longest, wanted or [1])
    return wanted, measure


def take_settings(options: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a sweep; an option of the same name is removed from ``options`` and replaces the setting."""
    return {name: options.pop(name, value) for name, value in settings.items()}


def check_tasks(tasks: Any, include_path: Any) -> list[str]:
    """Names of tasks as a list; empty where none are given.

    Raises:
        BadComparison: they are no list.
        WrongKind: the folder of task files is no path.
    """
    if include_path is not None and not isinstance(include_path, (str, os.PathLike)):
        raise WrongKind(f"include_path is a folder of task files, got {shown(include_path)}. Pass its path.")
    if tasks is None:
        return []
    if isinstance(tasks, (str, bytes)) or not isinstance(tasks, (Sequence, set, frozenset)):
        raise BadComparison(f"tasks is a list of names, got {shown(tasks)}. Pass for example ['posenc_ppl'].")
    return list(tasks)


def check_options(options: Any, what: str = "options") -> dict[str, Any]:
    """Further options of tasks.

    Raises:
        WrongKind: they are no mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise WrongKind(f"{what} is a mapping from names to values, got {shown(options)}. Pass a dictionary.")
    return dict(options or {})


def options_of_both(options: Any, metadata: Any) -> dict[str, Any]:
    """Options of tasks from the two arguments that take them.

    Raises:
        TaskOptionOutOfRange: both have the same one.
        WrongKind: one of them is no mapping.
    """
    ours, theirs = check_options(options), check_options(metadata, "metadata")
    if twice := sorted(ours.keys() & theirs.keys()):
        raise TaskOptionOutOfRange(f"{twice[0]} is among both options and metadata of tasks. Pass it in one of them.")
    return ours | theirs


class SharedOptions(dict[str, Any]):
    """Options of tasks that were checked for all tasks of a comparison together; a single task may read none."""


def check_shots(given: Any) -> int | None:
    """A number of few-shot examples.

    Raises:
        TaskOptionOutOfRange: it is none.
    """
    return 0 if given == 0 and not isinstance(given, bool) else None if given is None else whole("num_fewshot", given)


def check_generation(given: Any) -> dict[str, Any]:
    """Options of generation, from a mapping or from lm-eval's ``name=value,name=value``.

    Raises:
        WrongKind: they are neither.
    """
    if isinstance(given, str):
        parts = [part.partition("=") for part in given.split(",") if part.strip()]
        if not all(name.strip() and sign for name, sign, _ in parts):
            raise WrongKind(f"gen_kwargs are name=value,name=value, got {shown(given)}. Pass max_gen_toks=20.")
        given = {name.strip(): json_or_text(value.strip()) for name, _, value in parts}
    return check_options(given, "gen_kwargs")


def refuse_unread(options: Mapping[str, Any], tasks: Sequence[Any], *, text: bool = False) -> None:
    """Refuse options, and a text, that none of the tasks uses; tasks that are not ours may use any.

    Raises:
        UnknownOption: there is such an option.
        BadComparison: the text is not read.
    """
    known = {field.name for field in fields(Sweep)} - PARTICULAR
    if not all(hasattr(task, "sweep") for task in tasks):
        return
    if text and not any(task.reads_text for task in tasks):
        raise BadComparison(
            "With these options none of the tasks reads the text. Leave it out, or the option haystack."
        )
    for task in tasks:
        known |= task.reads | set(getattr(getattr(task, "options", None), "used", ()))
    for name in options:
        if name not in known:
            raise UnknownOption(
                f"None of these tasks takes the option {shown(name)}.{nearest(name, known)} Leave it out; "
                f"they take {', '.join(sorted(known))}."
            )


def check_tokenizer(given: Any) -> None:
    """Refuse what is neither a tokenizer nor the name of one.

    Raises:
        WrongKind: it is neither.
    """
    if given is not None and not isinstance(given, (str, os.PathLike)) and not callable(given):
        raise WrongKind(f"A tokenizer is an object, a folder or a hub name, got {shown(given)}. Pass one, or none.")


def check_batch(given: Any) -> None:
    """Refuse a batch size that is not a positive number or ``auto``.

    Raises:
        TaskOptionOutOfRange: it is neither a count nor ``"auto"``.
    """
    if not (isinstance(given, str) and given.partition(":")[0] == "auto"):
        whole("batch_size", given)


def folder_of_results(given: Any) -> Path:
    """Validate and return the folder of a comparison.

    Raises:
        WrongKind: it is no path.
        FolderUnusable: it cannot be a folder.
    """
    name = folder_to_write(given)
    if len(os.fsencode(Path(name).name)) > 255:
        raise FolderUnusable(f"{shown(name)} cannot be a folder: the name is too long. Choose another with --out.")
    return Path(name)
