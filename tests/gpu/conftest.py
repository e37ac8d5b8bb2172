"""Tests of what only a CUDA GPU runs: its kernels, its asynchronous calls, its graphs.

    pytest --runslow -m gpu -n 8 --dist loadgroup

Kernels are compiled in the process that calls them first, and tests of one ``xdist_group`` share theirs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hf_posenc.attention.routes import flex_cuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker of GPU tests to the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")


@pytest.fixture
def device() -> str:
    """The GPU; tests that use it are skipped if there is none."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU, and a torch that is built for it")
    return "cuda"


@pytest.fixture(autouse=True)
def compiled_for_short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels for the short texts of these tests too."""
    monkeypatch.setattr(flex_cuda, "FEW", 0)
