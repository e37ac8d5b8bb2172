"""The code of schemes that are not of this package, as a checkpoint remembers it.

A checkpoint holds names and options: whoever edits a formula, or a default, of a scheme of one's own changes what all
models compute that were saved with it. Loading one says so. Earlier versions stored a digest of bytecode, which is
compared no further.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from hf_posenc.core.source_digest import digest_of, source_digest
from hf_posenc.errors import SchemeCodeChanged
from hf_posenc.schemes.spec import Layout


def digest_of_own(classes: Iterable[type]) -> str:
    """Digest of the source of those classes that are not of this package; empty where there are none."""
    own = sorted({digest for cls in classes if (digest := source_digest(cls)) is not None})
    return digest_of(" ".join(own)) if own else ""


def own_code(layout: Layout) -> dict[str, str] | None:
    """What a checkpoint stores of the code of its schemes; None where all are of this package."""
    digest = digest_of_own(classes_of(layout))
    return {"source": digest} if digest else None


def classes_of(layout: Layout) -> list[type]:
    """The classes of the schemes of all layers."""
    return [cls for plan in (layout.default, *layout.layers.values()) for cls, _ in plan.parts]


def warn_of_changed_code(stored: Any, layout: Layout) -> None:
    """Warn where a checkpoint's schemes have other code now than when it was saved.

    Args:
        stored: what `own_code` returned then; None of a checkpoint that says nothing.
        layout: the checkpoint's schemes, as they are registered here.
    """
    now = own_code(layout)
    if not isinstance(stored, dict) or now is None or "source" not in stored or stored == now:
        return
    names = ", ".join(sorted({cls.record.name for cls in classes_of(layout) if digest_of_own([cls])}))  # type: ignore[attr-defined]
    warnings.warn(
        f"The code of {names}, or a default of an option, is not what this checkpoint was saved with: the model may "
        "compute something else. Put that code back, or save the model again.",
        SchemeCodeChanged,
        stacklevel=2,
    )
