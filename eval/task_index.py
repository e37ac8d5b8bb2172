"""Find lm-eval's tasks by name.

lm-eval parses more than ten thousand task files to learn their names, which takes 20 s. The file of a task is found by
its text in a fraction of that; the whole index is only built for groups, for tags and to suggest a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

TASKS = Path(__file__).parent / "tasks"
"""The folder of our task files, for lm-eval's ``include_path``."""


def manager_of(names: Sequence[str], include_path: str | Path | None, metadata: dict[str, Any] | None) -> Any:
    """lm-eval's manager of these tasks: of our own and the user's, else of lm-eval's as well."""
    from lm_eval.tasks import TaskManager

    own = folders(include_path)
    manager = TaskManager(include_path=own, include_defaults=False, metadata=metadata)
    others = [name for name in names if name not in manager.all_tasks and not Path(name).is_file()]
    if not others:
        return manager
    found = [task_folder(name) for name in others]
    if None not in found:
        some = list(dict.fromkeys(map(str, found)))
        return TaskManager(include_path=[*some, *own], include_defaults=False, metadata=metadata)
    return TaskManager(include_path=own, metadata=metadata)


def folders(include_path: str | Path | None) -> list[str]:
    """Our folder of task files, and the user's."""
    return [str(TASKS)] + ([] if include_path is None else [str(include_path)])


@lru_cache(maxsize=64)
def task_folder(name: str) -> Path | None:
    """The folder of the file of one of lm-eval's tasks; None for groups, tags and what it does not have."""
    import lm_eval.tasks

    line = re.compile(rb"^['\"]?task['\"]?: *['\"]?" + re.escape(name.encode()) + rb"['\"]? *(#.*)?\r?$", re.MULTILINE)
    root = Path(lm_eval.tasks.__file__).parent
    files = sorted(root.rglob("*.yaml"), key=lambda file: name not in file.stem)  # those called like the task first
    return next((file.parent for file in files if line.search(file.read_bytes())), None)


@lru_cache(maxsize=2)
def every_name(include_path: str | Path | None) -> frozenset[str]:
    """Names of all tasks, groups and tags."""
    from lm_eval.tasks import TaskManager

    return frozenset(TaskManager(include_path=folders(include_path)).all_tasks)
