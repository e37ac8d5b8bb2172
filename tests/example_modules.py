"""Import scripts of examples/ as if they ran: with their folder on the path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from hf_posenc.patches import registry as adapters
from hf_posenc.schemes import registry as schemes

EXAMPLES = Path(__file__).parents[1] / "examples"


@contextmanager
def example_module(name: str) -> Iterator[ModuleType]:
    """A script as a module; on exit, the module and its registered adapters and schemes are removed."""
    known = set(adapters._ADAPTERS)
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
        sys.modules.pop(name, None)
        for added in set(adapters._ADAPTERS) - known:
            del adapters._ADAPTERS[added]
        for record in [one for one in schemes._SCHEMES.values() if one.target.startswith(f"{name}:")]:
            del schemes._SCHEMES[record.name]
            schemes._CLASSES.pop(record.name, None)
