"""Each name of another package that the source uses is one that the installed versions have."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs")]

pytest.importorskip("peft")
if Version(version("transformers")) < Version("5.23"):
    pytest.skip("the page is of a later transformers", allow_module_level=True)
pytest.importorskip("lm_eval")

import seam_names  # noqa: E402

Seams = dict[seam_names.Name, seam_names.Use]


@pytest.fixture(scope="module")
def found() -> Seams:
    """All of them; a name that is gone fails here."""
    return seam_names.seams()


@pytest.mark.slow
def test_each_keyword_is_taken(found: Seams) -> None:
    for name, use in found.items():
        value = seam_names.value_of(name) if use.keywords else None
        if value is None:
            continue
        taken = inspect.signature(value).parameters.values()
        if not any(one.kind is one.VAR_KEYWORD for one in taken):
            assert use.keywords <= {one.name for one in taken}, name


def test_a_name_that_is_gone_is_noticed() -> None:
    """Control."""
    with pytest.raises(AttributeError, match="Gone"):
        seam_names.value_of(("transformers.cache_utils", "Gone"))
    typing_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from peft import Gone"
    assert not list(seam_names.names(list(seam_names.nodes(ast.parse(typing_only)))))
