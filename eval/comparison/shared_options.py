"""Options of tasks that all cells of a comparison share: their place in the keys of cells, and whether any task reads
them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_posenc.errors import BadComparison, PosEncError, UnreadableDocuments
from hf_posenc.eval.catalogue import own_tasks
from hf_posenc.eval.comparison.identity import files_digest, to_json
from hf_posenc.eval.errors import TaskOptionOutOfRange
from hf_posenc.eval.quiet import suppress_output
from hf_posenc.eval.task_run import load_tasks
from hf_posenc.eval.tasks.parse import paths
from hf_posenc.eval.validate import refuse_unread

PATHS = ("data", "docs")
"""Options that name files and folders; the key of a cell has their content, wherever it lies."""
ARGUMENTS = {"text": "text", "field": "text_field", "separator": "document_separator", "tokenizer": "tokenizer"}
"""What the metadata of a task also holds, and the argument of a comparison that it comes from."""


def check_no_arguments(options: Mapping[str, Any]) -> None:
    """Refuse options that are arguments of a comparison by another name.

    Raises:
        BadComparison: there is one.
    """
    for name in options:
        if name in ARGUMENTS:
            raise BadComparison(
                f"{name} is no option of tasks in a comparison. Pass {ARGUMENTS[name]}"
                f"{'' if name == 'tokenizer' else ' (--' + ARGUMENTS[name].replace('_', '-') + ')'} instead."
            )


def options_identity(options: Mapping[str, Any], without: Path) -> dict[str, Any]:
    """Options as JSON values for the keys of cells, files by their content, less those below the folder ``without``."""
    return {name: identified(name, value, without) for name, value in options.items()}


def identified(name: str, value: Any, without: Path) -> Any:
    """One option: files of `PATHS` by content alone; any other value that is a file, by name and content."""
    if name in PATHS:
        return [digest_or_name(one, without) for one in paths(value, name)]
    if isinstance(value, (str, Path)) and os.path.isfile(value):
        return {"name": str(value), "content": files_digest(Path(value))}
    return to_json(value)


def digest_or_name(given: str | Path, without: Path) -> str:
    """Digest of a file or folder; the name of anything else, such as a dataset."""
    path = Path(given).expanduser()
    return files_digest(path, without=without) if os.path.exists(path) else str(given)


def check_read(
    options: Mapping[str, Any], tasks: Sequence[str], lengths: Sequence[int], others: dict[str, Any]
) -> None:
    """Refuse options that no task reads, before any cell is measured; tasks that are not ours may use any.

    Args:
        options: of tasks.
        tasks: names.
        lengths: in tokens.
        others: what else the metadata of the tasks holds, as `hf_posenc.eval.task_run.run_tasks` takes it.

    Raises:
        UnknownOption: no task reads one.
        BadComparison: with these options none reads the text.
        PosEncError: an option is wrong, or a task cannot be measured at any of the lengths.
    """
    if not options or not set(tasks) <= set(own_tasks()):
        return
    with suppress_output(True):
        loaded = [task for name in tasks for task in loaded_task(name, lengths, {**others, **options})]
    refuse_unread(options, loaded, text=others["text"] is not None)


def loaded_task(name: str, lengths: Sequence[int], metadata: dict[str, Any]) -> list[Any]:
    """A task at the longest length at which it can be measured; the cells of other lengths say why they cannot."""
    for length in sorted(lengths, reverse=True):
        try:
            return list(load_tasks([name], metadata | {"lengths": [length]}, None)["tasks"].values())
        except PosEncError as error:
            if isinstance(error, (UnreadableDocuments, TaskOptionOutOfRange)) or length == min(lengths):
                raise
    return []
