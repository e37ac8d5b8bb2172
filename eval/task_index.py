"""Find lm-eval's tasks by name, and say in words why one cannot be loaded.

lm-eval parses more than ten thousand task files to learn their names, which takes 20 s. The file of a task is found by
its text in a fraction of that; the whole index is only built for groups, for tags and to suggest a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import BadComparison, MissingPackage, PosEncError, first_line, shown
from hf_posenc.eval.errors import TaskDataMissing

TASKS = Path(__file__).parent / "tasks"
"""The folder of our task files, for lm-eval's ``include_path``."""
NETWORK_ERRORS = ("Connect", "Offline", "Timeout", "DatasetNotFound", "LocalEntryNotFound", "URLError")
"""Parts of the names of errors of datasets, huggingface_hub, httpx, requests and urllib."""


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


@contextmanager
def explained_task_errors(names: Sequence[str]) -> Iterator[None]:
    """Convert errors of lm-eval about a task that it cannot load.

    Raises:
        MissingPackage: a package is missing.
        TaskDataMissing: data would have to be downloaded, and cannot be.
        BadComparison: lm-eval raised any other error.
    """
    try:
        with explained_imports():
            yield
    except (PosEncError, MemoryError):
        raise
    except Exception as error:  # of lm-eval, datasets, jinja, and of what the file names
        named, first = shown(", ".join(map(str, names))), first_line(error)[:200]
        if package := missing_package(error):
            raise MissingPackage(
                f"The task {named} needs the package {package}, which is not installed. pip install {package}"
            ) from error
        if needs_network(error):
            raise TaskDataMissing(
                f"The task {named} needs data that is not on this machine and cannot be fetched now: {first}. Fetch "
                "it where there is a network, with hf download --repo-type dataset NAME, and keep HF_HOME."
            ) from error
        raise BadComparison(
            f"The task {named} cannot be loaded: {type(error).__name__}: {first}. Correct its file and its data."
        ) from error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def missing_package(error: BaseException) -> str:
    """The package without which a task cannot be imported; empty where it fails for another reason."""
    names = (cause.name for cause in causes(error) if isinstance(cause, ModuleNotFoundError) and cause.name)
    return next((name.partition(".")[0] for name in names if not name.startswith("transformers.")), "")


def needs_network(error: BaseException) -> bool:
    """Whether an error is that of data that cannot be fetched; libraries raise a dozen types, some of their own."""
    return any(
        isinstance(cause, ConnectionError) or any(word in type(cause).__name__ for word in NETWORK_ERRORS)
        for cause in causes(error)
    )
