"""Validate task files of other authors as plain text, before lm-eval loads them.

lm-eval passes over a file it cannot parse, takes the last of two tasks of one name, and never ends on a file that
includes itself. Nothing is run here: tags such as ``!function`` are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_posenc.core.lazy import explained_imports
from hf_posenc.errors import BadComparison, MissingPackage, PosEncError, first_line, shown
from hf_posenc.eval.errors import TaskDataMissing

LARGEST = 1 << 20  # bytes
LONGEST_NAME = 200  # characters; file names are made of it
ENDINGS = (".yaml", ".yml")
NETWORK_ERRORS = ("Connect", "Offline", "Timeout", "DatasetNotFound", "LocalEntryNotFound", "URLError")
"""Parts of the names of errors of datasets, huggingface_hub, httpx, requests and urllib."""


def check_task_files(names: Sequence[str], include_path: str | Path | None) -> None:
    """Refuse files that lm-eval would misread or hang on.

    Raises:
        BadComparison: one cannot be read, includes itself, or has a name that is taken or invalid.
    """
    folder = [] if include_path is None else sorted(p for p in Path(include_path).rglob("*") if p.suffix in ENDINGS)
    named = [Path(name) for name in names if name.lower().endswith(ENDINGS) and Path(name).is_file()]
    owners: dict[str, Path] = {}
    for file in [*folder, *named]:
        content = read(file)
        check_includes(file, content, ())
        for name in filter(None, (content.get("task"), content.get("group"))):
            if isinstance(name, str):
                check_name(name, file)
                if owners.setdefault(name, file).resolve() != file.resolve():
                    raise BadComparison(
                        f"The task {shown(name)} is in {str(owners[name])!r} and in {str(file)!r}. Rename one."
                    )


def read(file: Path) -> dict[str, Any]:
    """Parse a task file, every value as text.

    Raises:
        BadComparison: it is not valid YAML, or no mapping.
    """
    import yaml

    try:
        data = file.read_bytes()
        if len(data) > LARGEST:
            raise ValueError(f"it is larger than {LARGEST} bytes")
        content = yaml.BaseLoader(data.decode("utf-8")).get_single_data()  # builds nothing but text
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        first = " ".join(str(error).split())[:200].rstrip(" .")
        raise BadComparison(f"The task file {str(file)!r} cannot be read: {first}. Correct it.") from error
    if not isinstance(content, dict):
        raise BadComparison(f"The task file {str(file)!r} holds no mapping but {shown(content)}. Correct it.")
    return content


def check_includes(file: Path, content: dict[str, Any], above: tuple[Path, ...]) -> None:
    """Refuse a file that includes one which is not there, or itself by way of others."""
    above = (*above, file.resolve())
    given = content.get("include") or []
    for name in [given] if isinstance(given, str) else given:
        other = file.parent / name
        if other.resolve() in above:
            raise BadComparison(
                f"The task file {str(file)!r} includes {name!r}, and that includes it. Break the circle."
            )
        if not other.is_file():
            raise BadComparison(f"The task file {str(file)!r} includes {name!r}, which is not there. Correct the path.")
        check_includes(other, read(other), above)


def check_name(name: str, file: Path) -> None:
    """Refuse a name that is not printable, too long, or a path."""
    odd = not name.isprintable() or len(name) > LONGEST_NAME or name in (".", "..")
    if odd or "/" in name or "\\" in name:
        raise BadComparison(
            f"The task file {str(file)!r} is called {shown(name)}. Choose a name of at most {LONGEST_NAME} printable "
            "characters without slashes."
        )


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
