"""Catalogue of lm-eval tasks and groups, without loading any of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.errors import BadComparison, nearest, shown
from hf_posenc.eval.errors import UntrustedTask
from hf_posenc.eval.task_folder import TASKS

LONGEST_NAME = 300  # characters
GROUP = re.compile(r"^group:", re.MULTILINE)


JOINT = ("posenc_token_nll",)
"""Tasks that score a text once for all lengths: the numbers of one length depend on the other requested lengths."""

TEXT_TASKS = (
    "posenc_copy_gain", "posenc_docs", "posenc_key_tokens", "posenc_mlm", "posenc_mlm_recall", "posenc_ppl",
    "posenc_sliding_ppl", "posenc_token_nll",
)  # fmt: skip
"""Those of our tasks that measure on a text; the others make their own."""


def check_text_used(names: Sequence[str]) -> None:
    """Refuse a text of the user's that none of our tasks reads; other tasks may read any.

    Raises:
        BadComparison: nothing would be measured on it.
    """
    tasks = expanded(names)
    if tasks and all(task in own_tasks() and task not in TEXT_TASKS for task in tasks):
        raise BadComparison(
            f"None of the tasks {', '.join(tasks)} reads a text, and one was given. Leave it out, or add one of "
            f"{', '.join(TEXT_TASKS)}."
        )


def sweeps(task: str) -> bool:
    """Whether a task can be measured at each length alone; other tasks are measured once."""
    return task in own_tasks() and task not in JOINT


def own_tasks() -> list[str]:
    """Names of our task and group files."""
    return sorted(file.stem for file in TASKS.glob("*.yaml"))


def expanded(names: Sequence[str]) -> list[str]:
    """The tasks of these names, each once; our groups are replaced by their tasks, so that each is a cell."""
    found: list[str] = []
    for name in names:
        found += expanded(members(name)) if members(name) else [name]
    return list(dict.fromkeys(found))


def members(name: str) -> list[str]:
    """The tasks of one of our groups; none of a task."""
    file = TASKS / f"{name}.yaml"
    if name not in own_tasks() or not GROUP.search(text := file.read_text(encoding="utf-8")):
        return []
    import yaml  # type: ignore[import-untyped]

    tasks: list[Any] = yaml.safe_load(text)["task"]
    return [task if isinstance(task, str) else task["task"] for task in tasks]


def check_known(names: Sequence[str], include_path: str | Path | None) -> None:
    """Refuse tasks that lm-eval does not have; its index, which takes seconds, is only built where needed.

    Raises:
        BadComparison: there is no such task.
    """
    others = set(names) - set(own_tasks())
    if not others:
        return
    for name in sorted(others) if include_path is None else ():
        if name.startswith("posenc_"):
            raise BadComparison(f"There is no task {name!r}.{nearest(name, own_tasks())} All of ours: {task_list()}.")
    from lm_eval.tasks import TaskManager

    folders = [str(TASKS)] + ([] if include_path is None else [str(include_path)])
    known = set(TaskManager(include_path=folders).all_tasks)
    for name in names:
        if name not in known:
            raise BadComparison(f"There is no task {name!r}.{nearest(name, known)} `lm_eval ls tasks` shows all.")


def check_trusted(names: Sequence[str], include_path: str | Path | None, *, trust: bool) -> None:
    """Refuse task files from outside the installed packages: lm-eval runs the functions and templates they name.

    Raises:
        UntrustedTask: one is requested without ``trust``.
        BadComparison: a name is not a valid task name.
    """
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
            raise BadComparison(f"There is no task {shown(name)}. All of ours: {task_list()}.")
    files = [name for name in names if is_file(name)]
    outside = include_path if include_path is not None else next(iter(files), None)
    if include_path is not None and not Path(include_path).is_dir():
        raise BadComparison(f"There is no folder {shown(str(include_path))} of task files. Pass one.")
    if outside is None or trust or Path(outside).resolve() == TASKS.resolve():
        return
    if Path(outside).resolve().parent == TASKS.resolve():
        return
    raise UntrustedTask(
        f"The task files of {shown(str(outside))} can run any code when they are loaded. "
        "Read them, and then pass trust_tasks=True (--trust-tasks)."
    )


def is_file(name: str) -> bool:
    """Whether lm-eval would take a task for a file rather than a name."""
    return (
        name.lower().endswith((".yaml", ".yml", ".py"))
        or any(sign in name for sign in ("/", "\\"))
        or Path(name).exists()
    )


def task_list() -> str:
    """Names of our tasks, comma-separated."""
    return ", ".join(own_tasks())
