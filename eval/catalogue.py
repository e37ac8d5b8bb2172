"""Catalogue of lm-eval tasks, without loading any of them.

lm-eval parses more than ten thousand task files to learn their names, which takes 20 s. Searching the files for the
line that names a task is much faster. The whole index is only built for groups, for tags and to suggest a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import BadComparison, PosEncError, UnknownOption, first_line, nearest, shown
from hf_posenc.eval.errors import UntrustedTask

TASKS = Path(__file__).parent / "tasks"
"""The folder of our task files, for lm-eval's ``include_path``."""
LONGEST_NAME = 300  # characters
PATH = re.compile(r"[/\\]|\.(ya?ml|py)$", re.IGNORECASE)  # in no name of a task of lm-eval

JOINT = ("posenc_token_nll",)
"""Tasks that score a text once for all lengths: the numbers of one length depend on the other requested lengths."""

SETTINGS = ("samples", "scored", "keys", "depths")
"""Settings of a sweep that not every task reads."""


@lru_cache(maxsize=1)
def task_files() -> dict[str, dict[str, Any]]:
    """Parsed contents of our task files by task name; the value of a ``!function`` tag stays text."""
    import yaml

    class TaskLoader(yaml.SafeLoader):
        """Reads lm-eval's ``!function`` as text."""

    TaskLoader.add_constructor("!function", lambda loader, node: node.value)
    files = sorted(TASKS.glob("*.yaml"))
    return {file.stem: TaskLoader(file.read_text(encoding="utf-8")).get_single_data() for file in files}


def task_class(task: str) -> Any:
    """Class of one of our tasks."""
    return resolve_name(task_files()[task]["class"])


def task_metadata(task: str) -> Mapping[str, Any]:
    """Metadata of one of our tasks: its ``title``, and the text and settings that it ``reads``; empty for others."""
    return task_files().get(task, {}).get("metadata", {})


def read_by(name: str, tasks: Sequence[str]) -> list[str]:
    """Filter ``tasks`` to those of ours that read a setting, or the ``text``."""
    return [task for task in tasks if name in task_metadata(task).get("reads", ())]


def reads(task: str, setting: str) -> bool:
    """Whether a task reads a setting; True for every task that is not ours, because it may read any."""
    return setting not in SETTINGS or task not in task_files() or bool(read_by(setting, [task]))


def sweeps(task: str) -> bool:
    """Whether a task can be measured at each length alone; other tasks are measured once."""
    return task in task_files() and task not in JOINT


def check_tasks(names: Sequence[str], include_path: str | Path | None, *, trust: bool) -> None:
    """Refuse unknown names, and task files from outside the installed packages that were not declared trusted.

    lm-eval runs the functions and templates that a task file names. It would also run a file whose path stands in the
    place of a task name, so paths are refused.
    """
    if include_path is not None and not Path(include_path).is_dir():
        raise BadComparison(f"There is no folder {shown(str(include_path))} of task files. Check the path.")
    if include_path is not None and not trust and Path(include_path).resolve() != TASKS.resolve():
        raise UntrustedTask(
            f"The task files of {shown(str(include_path))} can run any code when they are loaded. "
            "Read them, and then pass trust_tasks=True (--trust-tasks)."
        )
    check_known(names, include_path)


def check_known(names: Sequence[str], include_path: str | Path | None) -> None:
    """Refuse tasks that lm-eval does not have; its index takes seconds and is only built where it is needed."""
    ours, in_folders = ", ".join(task_files()), names_in_folders(include_path)
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
            raise BadComparison(f"There is no task {shown(name)}. All of ours: {ours}.")
        if name in in_folders:
            continue
        if name.startswith("posenc_"):
            raise BadComparison(f"There is no task {name!r}.{nearest(name, task_files())} All of ours: {ours}.")
        if PATH.search(name):
            raise BadComparison(
                f"There is no task {name!r}, which is a path. Name the task, and set include_path to its folder "
                f"(--set include_path={Path(name).parent})."
            )
        if task_folder(name) is None and name not in names_in_lm_eval():
            known = in_folders | names_in_lm_eval()
            longer = sorted(task for task in known if task.endswith(f"_{name}"))[:3]
            hint = f" Did you mean {' or '.join(map(repr, longer))}?" if longer else nearest(name, known)
            raise BadComparison(
                f"There is no task {name!r}.{hint} `lm_eval ls tasks` shows all; include_path names a folder of more "
                "(--set include_path=FOLDER)."
            )


def check_settings_read(settings: Sequence[str], tasks: Sequence[str]) -> None:
    """Refuse settings, or a text, that none of the tasks reads; tasks that are not ours may read any."""
    if not tasks or not task_files().keys() >= set(tasks):
        return
    for name in settings:
        if not read_by(name, tasks):
            error = BadComparison if name == "text" else UnknownOption
            raise error(
                f"None of the tasks {', '.join(tasks)} reads {name}. Leave {name} out, or add one of "
                f"{', '.join(read_by(name, list(task_files())))}."
            )


def manager_of(names: Sequence[str], include_path: str | Path | None, metadata: dict[str, Any]) -> Any:
    """`TaskManager` for tasks of lm-eval; it reads only the folders of these tasks if all can be found."""
    from lm_eval.tasks import TaskManager

    our_folders, task_folders = folders(include_path), [task_folder(name) for name in names]
    if None in task_folders:
        return TaskManager(include_path=our_folders, metadata=metadata)
    needed = list(dict.fromkeys(map(str, task_folders)))
    return TaskManager(include_path=[*needed, *our_folders], include_defaults=False, metadata=metadata)


def folders(include_path: str | Path | None) -> list[str]:
    """Our folder of task files, and the user's if there is one."""
    return [str(TASKS)] + ([] if include_path is None else [str(include_path)])


@lru_cache(maxsize=64)
def task_folder(name: str) -> Path | None:
    """Folder that holds the file of one of lm-eval's tasks; None for groups, tags and unknown names."""
    import lm_eval.tasks

    line = re.compile(rb"^['\"]?task['\"]?: *['\"]?" + re.escape(name.encode()) + rb"['\"]? *(#.*)?\r?$", re.MULTILINE)
    root = Path(lm_eval.tasks.__file__).parent
    files = sorted(root.rglob("*.yaml"), key=lambda file: name not in file.stem)  # likely files first
    return next((file.parent for file in files if line.search(file.read_bytes())), None)


def names_in_folders(include_path: str | Path | None) -> frozenset[str]:
    """Names of our tasks, and of the tasks, groups and tags in a user's folder."""
    if include_path is None:
        return frozenset(task_files())
    from lm_eval.tasks import TaskManager

    return frozenset(TaskManager(include_path=folders(include_path), include_defaults=False).all_tasks)


@lru_cache(maxsize=1)
def names_in_lm_eval() -> frozenset[str]:
    """Names of all tasks, groups and tags that come with lm-eval."""
    from lm_eval.tasks import TaskManager

    return frozenset(TaskManager().all_tasks)


@contextmanager
def explained_task_errors(names: Sequence[str]) -> Iterator[None]:
    """Raise `BadComparison` for any error that occurs while lm-eval loads tasks."""
    try:
        with explained_imports():
            yield
    except (PosEncError, MemoryError):
        raise
    except Exception as error:  # from lm-eval, datasets, jinja, or a function that the task file names
        raise BadComparison(
            f"The task {shown(', '.join(map(str, names)))} cannot be loaded: {type(error).__name__}: "
            f"{first_line(error)[:200]}. Correct its file, install what it needs, or fetch its data where there is a "
            "network, with hf download --repo-type dataset NAME."
        ) from error
