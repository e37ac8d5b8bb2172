"""Catalogue of lm-eval tasks, without loading any of them.

lm-eval parses more than ten thousand task files to learn their names, which takes 20 s. The file of a task is found by
its text in a fraction of that; the whole index is only built for groups, for tags and to suggest a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import BadComparison, PosEncError, UnknownOption, first_line, nearest, shown
from hf_posenc.eval.errors import UntrustedTask

TASKS = Path(__file__).parent / "tasks"
"""The folder of our task files, for lm-eval's ``include_path``."""
LONGEST_NAME = 300  # characters

JOINT = ("posenc_token_nll",)
"""Tasks that score a text once for all lengths: the numbers of one length depend on the other requested lengths."""

FILE_TASKS = ("posenc_qa_file",)
"""Those that read records of local files, named by the option ``data``, and have no texts of their own."""

SETTINGS = ("samples", "scored", "keys", "depths")
"""Settings of a sweep that not every task reads."""


@lru_cache(maxsize=1)
def task_files() -> dict[str, dict[str, Any]]:
    """The contents of our task files by their names; the functions that they name stay words."""
    import yaml

    class Words(yaml.SafeLoader):
        """Reads lm-eval's ``!function`` as text."""

    Words.add_constructor("!function", lambda loader, node: node.value)
    files = sorted(TASKS.glob("*.yaml"))
    return {file.stem: Words(file.read_text(encoding="utf-8")).get_single_data() for file in files}


def own_tasks() -> list[str]:
    """Names of our tasks."""
    return list(task_files())


def described(task: str) -> Mapping[str, Any]:
    """What the file of one of our tasks says of it: its ``title``, and the text and settings that it ``reads``."""
    return task_files().get(task, {}).get("metadata", {})


def read_by(name: str, tasks: Sequence[str]) -> list[str]:
    """Those of the tasks that are ours and read a setting, or the ``text``."""
    return [task for task in tasks if name in described(task).get("reads", ())]


def reads(task: str, setting: str) -> bool:
    """Whether a task reads a setting; one that is not ours may read any."""
    return setting not in SETTINGS or task not in task_files() or bool(read_by(setting, [task]))


def sweeps(task: str) -> bool:
    """Whether a task can be measured at each length alone; other tasks are measured once."""
    return task in task_files() and task not in JOINT


def check_tasks(names: Sequence[str], include_path: str | Path | None, *, trust: bool) -> None:
    """Refuse task files from outside the installed packages that were not declared trusted, and unknown names.

    lm-eval runs the functions and templates that a file names. A path is no name: lm-eval would run its file as well.
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
    """Refuse tasks that lm-eval does not have; its index, which takes seconds, is only built where needed."""
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
            raise BadComparison(f"There is no task {shown(name)}. All of ours: {task_list()}.")
    others = set(names) - set(own_tasks())
    for name in sorted(others) if include_path is None else ():
        if name.startswith("posenc_"):
            raise BadComparison(f"There is no task {name!r}.{nearest(name, own_tasks())} All of ours: {task_list()}.")
    if not others or (include_path is None and all(map(task_folder, others))):
        return
    known = every_name(include_path)
    for name in names:
        if name not in known:
            alike = sorted(other for other in known if other.endswith(f"_{name}"))[:3]
            hint = f" Did you mean {' or '.join(map(repr, alike))}?" if alike else nearest(name, known)
            raise BadComparison(
                f"There is no task {name!r}.{hint} `lm_eval ls tasks` shows all; include_path names a folder of others."
            )


def task_list() -> str:
    """Names of our tasks, comma-separated."""
    return ", ".join(own_tasks())


def check_settings_read(asked: Sequence[str], tasks: Sequence[str]) -> None:
    """Refuse settings, or a text, that none of the tasks reads; tasks that are not ours may read any."""
    known = own_tasks()
    if not tasks or not all(task in known for task in tasks):
        return
    for name in asked:
        if not read_by(name, tasks):
            raise (BadComparison if name == "text" else UnknownOption)(
                f"None of the tasks {', '.join(tasks)} reads {name}. Leave {name} out, or add one of "
                f"{', '.join(read_by(name, known))}."
            )


def manager_of(names: Sequence[str], include_path: str | Path | None, metadata: dict[str, Any]) -> Any:
    """lm-eval's manager of tasks of its own: of their folders alone where these are found."""
    from lm_eval.tasks import TaskManager

    own, found = folders(include_path), [task_folder(name) for name in names]
    if None in found:
        return TaskManager(include_path=own, metadata=metadata)
    some = list(dict.fromkeys(map(str, found)))
    return TaskManager(include_path=[*some, *own], include_defaults=False, metadata=metadata)


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


@contextmanager
def explained_task_errors(names: Sequence[str]) -> Iterator[None]:
    """Convert errors of lm-eval about a task that it cannot load."""
    try:
        with explained_imports():
            yield
    except (PosEncError, MemoryError):
        raise
    except Exception as error:  # of lm-eval, datasets, jinja, and of what the file names
        raise BadComparison(
            f"The task {shown(', '.join(map(str, names)))} cannot be loaded: {type(error).__name__}: "
            f"{first_line(error)[:200]}. Correct its file, install what it needs, or fetch its data where there is a "
            "network, with hf download --repo-type dataset NAME."
        ) from error
