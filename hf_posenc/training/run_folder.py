"""A run has its folder to itself, and room in it, before any work starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from hf_posenc.core.files.free_space import check_disk_space
from hf_posenc.errors import FolderInUse

try:
    import fcntl
except ImportError:  # Windows, where nobody keeps two runs apart
    fcntl = None  # type: ignore[assignment]

KEPT_COPIES = 3
"""Of what is trained: two checkpoints are kept while a third, or the result, is written."""
MOMENTS = 2
"""Of AdamW, in every checkpoint beside the weights."""


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Hold ``folder`` (made if need be) while this lasts. The lock goes with the process, however that ends.

    Raises:
        FolderInUse: another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUse(
                f"{folder} is in use by another run. Wait for that to end, or choose another folder."
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def check_checkpoint_space(folder: Path, trained: nn.Module) -> None:
    """Refuse a run whose checkpoints will not fit.

    Raises:
        NoRoom: the disk of ``folder`` has less room than they take.
    """
    size = sum(p.numel() * p.element_size() for p in trained.parameters() if p.requires_grad)
    check_disk_space(folder, KEPT_COPIES * (1 + MOMENTS) * size, "Checkpoints")
