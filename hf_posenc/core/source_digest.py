"""Digest of the source of a third-party class, by which stored results and checkpoints identify it.

The digest is computed when a scheme is registered: a file that is edited later does not describe the class in memory.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakKeyDictionary

KNOWN_BY_VERSION = {__name__.partition(".")[0], "torch", *sys.stdlib_module_names}
"""Packages whose classes need no digest."""
_DIGESTS: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()


def is_foreign(cls: type) -> bool:
    """Whether a class comes from neither this package, torch nor Python."""
    return cls.__module__ == "__main__" or cls.__module__.partition(".")[0] not in KNOWN_BY_VERSION


def source_digest(cls: type) -> str | None:
    """Digest of the files that define a class and its bases; in a notebook, of their methods.

    None for a class of this package, and for a class without source, such as one made by `exec`.
    """
    if cls not in _DIGESTS:
        texts = [text for base in cls.__mro__ if is_foreign(base) for text in sources(base)]
        _DIGESTS[cls] = digest_of("\0".join(texts)) if texts else None
    return _DIGESTS[cls]


def sources(cls: type) -> Iterable[str]:
    """Texts of the file of a class and of all files in its package folder; without a file, texts of its methods.

    File names are left out: a file may be renamed.
    """
    try:
        file = Path(inspect.getfile(cls))
        siblings = sorted(file.parent.glob("*.py")) if "." in cls.__module__ else []
        return [path.read_text(encoding="utf-8") for path in dict.fromkeys([file, *siblings])]
    except (OSError, TypeError, ValueError):
        functions = [value for value in vars(cls).values() if inspect.isfunction(value)]
    try:
        return [inspect.getsource(function) for function in functions]
    except OSError:
        return []


def digest_of(content: str | bytes) -> str:
    """BLAKE2 digest of 16 bytes, in hexadecimal."""
    return hashlib.blake2b(content if isinstance(content, bytes) else content.encode(), digest_size=16).hexdigest()
