"""Safe file names for schemes, tasks and plots.

A plain name is kept. Any other keeps its plain characters and gets a digest of the whole name, so that all differ.
"""

from __future__ import annotations

import hashlib
import re

PLAIN = re.compile(r"[a-z0-9_][a-z0-9._+=-]*")
DIGESTED = re.compile(r".*-[0-9a-f]{12}")
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")  # of Windows, with any ending
LONGEST = 80  # characters, all of them one byte


def slug(name: str) -> str:
    """A file name for ``name`` without an ending: at most 80 bytes, valid on every system, unique."""
    plain = PLAIN.fullmatch(name) and not DIGESTED.fullmatch(name) and not RESERVED.fullmatch(name)
    if plain and len(name) <= LONGEST and not name.endswith("."):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    kept = re.sub(r"[^a-z0-9._+=-]+", "-", name.lower())[: LONGEST - 16].strip(".-")
    return f"x-{kept}-{digest}" if kept else f"x-{digest}"
