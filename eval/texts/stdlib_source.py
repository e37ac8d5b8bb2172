"""Default texts: source code of the Python standard library, available in every installation.

Starters are trained on `TRAINING` and measured on `HELD_OUT`; no module is in both. All exist on Python 3.10 to 3.14,
with small differences, so a figure made from this text belongs to the interpreter that made it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

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
