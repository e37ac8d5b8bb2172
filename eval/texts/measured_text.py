"""The text that a model is measured on: its documents, which are read once, and a digest that identifies it.

The default text is source code of the Python standard library, available in every installation. Starters are trained
on `TRAINING` and measured on `HELD_OUT`; no module is in both. All modules exist on Python 3.10 to 3.14 with small
differences, so numbers from this text are only comparable under the same Python version.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from hf_posenc.errors import WrongKind, shown
from hf_posenc.eval.errors import TextTooShort
from hf_posenc.texts import Document, TextNames, TextSource
from hf_posenc.texts.document import TEXT, HubDataset
from hf_posenc.texts.files import check_size
from hf_posenc.texts.source import texts_digest

DEFAULT = "standard library"
"""Digest of the default text; the version of Python is a part of every key already."""


TextToMeasure: TypeAlias = "TextNames | TextSource | MeasuredText | None"
"""Forms of a text that `measured_text` accepts: None means the default text."""


@dataclass(eq=False)
class MeasuredText:
    """Documents to measure on.

    Attributes:
        documents: documents in the order in which they were named.
        label: names of the documents for reports; None for the default text.
        digest: equal for equal documents, whatever the names of their files.
    """

    documents: tuple[Document, ...]
    label: str | list[str] | None
    digest: str


def measured_text(text: TextToMeasure, *, field: str = TEXT) -> MeasuredText:
    """Read the text to measure on.

    Args:
        text: one or several paths of files and folders, ``hub:NAME:SPLIT``, `datasets` objects or a `TextSource`; None
            for held-out modules of this Python's standard library. A `MeasuredText` is returned unchanged.
        field: column of a record that holds its text.

    Raises:
        UnreadableDocuments: a document cannot be read, or all together take more than half of the memory.
        TextTooShort: there are no documents, or they contain only white space.
        WrongKind: ``text`` has another type, or a field is given although no files or datasets are.
    """
    if isinstance(text, MeasuredText):
        return text
    check_applies(text, field)
    if text is None:
        return default_text()
    source = text if isinstance(text, TextSource) else TextSource.of_names(text, field=field)
    known = (str, os.PathLike, HubDataset)
    names = [str(part) if isinstance(part, known) else f"a {type(part).__name__}" for part in source.parts]
    label = names[0] if len(names) == 1 else names
    documents, size = [], 0
    for document in source.documents():
        documents.append(document)
        size += len(document.content)
        check_size(str(label), size)  # the whole text is tokenised at once
    if not any(document.content.strip() for document in documents):
        raise TextTooShort(f"The text {shown(label)} has no words, among {size} characters. Give one with words.")
    digest = texts_digest(json.dumps(document.content, sort_keys=True).encode() for document in documents)
    return MeasuredText(tuple(documents), label, digest)


def check_applies(text: TextToMeasure, field: str) -> None:
    """Refuse a text field without files or datasets that it applies to."""
    if field == TEXT:
        return
    if text is None:
        raise WrongKind("A text field needs a text, and none is given. Pass text= as well.")
    if isinstance(text, TextSource):
        raise WrongKind("A TextSource names its text field itself. Pass it there.")


@lru_cache(maxsize=1)
def default_text() -> MeasuredText:
    """The held-out modules of the standard library, cached."""
    text = "\n".join(module_text(name) for name in HELD_OUT)
    return MeasuredText((Document(DEFAULT, text),), None, DEFAULT)


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
    sources = (f for f in files if not {"test", "tests"} & set(f.parts[-3:]))
    return "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in sources)
