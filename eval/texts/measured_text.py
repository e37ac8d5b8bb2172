"""The text that a model is measured on: its documents, read once, and the digest that tells it from others.

The default text is source code of the Python standard library, available in every installation. Starters are trained
on `TRAINING` and measured on `HELD_OUT`; no module is in both. All exist on Python 3.10 to 3.14, with small
differences, so a figure made from this text belongs to the interpreter that made it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from hf_posenc.errors import WrongKind, shown
from hf_posenc.eval.errors import TextTooShort
from hf_posenc.texts import Document, TextNames, TextSource
from hf_posenc.texts.document import TEXT, HubDataset
from hf_posenc.texts.files import check_size
from hf_posenc.texts.source import texts_digest

DEFAULT = "standard library"
"""Digest of the default text, which belongs to the version of Python."""


TextToMeasure: TypeAlias = "TextNames | TextSource | MeasuredText | None"
"""What `measured_text` takes: None for the default text."""


class MeasuredText:
    """Documents to measure on.

    Attributes:
        documents: in the order they were named.
        label: how they were named, for reports; None for the default text.
        digest: equal for equal documents, whatever their files are called.
    """

    def __init__(self, documents: tuple[Document, ...], label: str | list[str] | None, digest: str) -> None:
        self.documents, self.label, self.digest = documents, label, digest

    def __deepcopy__(self, memo: Any) -> MeasuredText:
        return self  # lm-eval copies the settings of every task

    def __str__(self) -> str:
        return self.digest


def measured_text(given: TextToMeasure, *, field: str = TEXT) -> MeasuredText:
    """Read the text to measure on.

    Args:
        given: one or several paths of files and folders, ``hub:NAME:SPLIT``, `datasets` objects or a `TextSource`; None
            for held-out modules of this Python's standard library; a text that is read already.
        field: column of a record that holds its text.

    Raises:
        UnreadableDocuments: one cannot be read, or all take more than half of the memory.
        TextTooShort: there are no documents, or nothing but white space in them.
        WrongKind: it is nothing of that, or a field is given that applies to nothing.
    """
    if isinstance(given, MeasuredText):
        return given
    check_applies(given, field)
    if given is None:
        return default_text()
    source = given if isinstance(given, TextSource) else TextSource.of_names(given, field=field)
    label = label_of(source)
    documents, size = [], 0
    for document in source.documents():
        documents.append(document)
        size += len(document.content)
        check_size(str(label), size)  # all of it is tokenised at once
    check_words(documents, label)
    digest = texts_digest(json.dumps(document.content, sort_keys=True).encode() for document in documents)
    return MeasuredText(tuple(documents), label, digest)


def check_applies(given: TextToMeasure, field: str) -> None:
    """Refuse a field where no files or datasets are named that are read by it."""
    if field == TEXT:
        return
    if given is None:
        raise WrongKind("A text field needs a text, and none is given. Pass text= as well.")
    if isinstance(given, TextSource):
        raise WrongKind("A TextSource names its text field itself. Pass it there.")


@lru_cache(maxsize=1)
def default_text() -> MeasuredText:
    """The held-out modules, which do not change."""
    text = "\n".join(module_text(name) for name in HELD_OUT)
    return MeasuredText((Document(DEFAULT, text),), None, DEFAULT)


def label_of(source: TextSource) -> str | list[str]:
    """The name of a text, or the names of several."""
    known = (str, os.PathLike, HubDataset)
    names = [str(part) if isinstance(part, known) else f"a {type(part).__name__}" for part in source.parts]
    return names[0] if len(names) == 1 else names


def check_words(documents: list[Document], label: str | list[str]) -> None:
    """Refuse a text without words."""
    if not any(document.content.strip() for document in documents):
        size = sum(len(document.content) for document in documents)
        raise TextTooShort(f"The text {shown(label)} has no words, among {size} characters. Give one with words.")


HELD_OUT = ("argparse", "difflib", "statistics", "tarfile", "mailbox", "typing")

TRAINING = (
    "abc", "ast", "asyncio", "base64", "bdb", "bisect", "bz2", "calendar", "cmd", "code", "codecs", "codeop",
    "collections", "colorsys", "compileall", "concurrent", "configparser", "contextlib", "contextvars", "copy",
    "copyreg", "csv", "ctypes", "curses", "dataclasses", "datetime", "dbm", "decimal", "dis", "doctest", "email",
    "enum", "filecmp", "fileinput", "fnmatch", "fractions", "ftplib", "functools", "genericpath", "getopt", "getpass",
    "gettext", "glob", "graphlib", "gzip", "hashlib", "heapq", "hmac", "html", "http", "imaplib", "importlib",
    "inspect", "io", "ipaddress", "json", "keyword", "linecache", "locale", "logging", "lzma", "mimetypes",
    "modulefinder", "multiprocessing", "netrc", "ntpath", "numbers", "opcode", "operator", "optparse", "os", "pdb",
    "pickle", "pickletools", "pkgutil", "platform", "plistlib", "poplib", "posixpath", "pprint", "profile", "pstats",
    "pty", "py_compile", "pyclbr", "pydoc", "pydoc_data", "queue", "quopri", "random", "re", "reprlib", "rlcompleter",
    "runpy", "sched", "secrets", "selectors", "shelve", "shlex", "shutil", "signal", "site", "smtplib", "socket",
    "socketserver", "sqlite3", "ssl", "stat", "string", "stringprep", "struct", "subprocess", "symtable", "sysconfig",
    "tabnanny", "tempfile", "textwrap", "threading", "timeit", "token", "tokenize", "trace", "traceback",
    "tracemalloc", "turtle", "types", "unittest", "urllib", "uuid", "venv", "warnings", "wave", "weakref",
    "webbrowser", "wsgiref", "xml", "xmlrpc", "zipapp", "zipimport", "zoneinfo", "_collections_abc", "_pydatetime",
    "_pydecimal", "_pyio", "_strptime", "_weakrefset", "_markupbase", "_compat_pickle",
)  # fmt: skip


def module_text(name: str) -> str:
    """The sources of a standard-library module or package, joined; empty where this Python has none.

    Nothing is imported: the source files are located and read.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    files = [Path(spec.origin)]
    if spec.submodule_search_locations:
        files = sorted(p for root in spec.submodule_search_locations for p in Path(root).rglob("*.py"))
    kept = (f for f in files if not {"test", "tests"} & set(f.parts[-3:]))
    return "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in kept)
