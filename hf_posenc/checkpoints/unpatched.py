"""Load a model without the scheme it carries, for what puts a scheme on the model itself: checks and benchmarks."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from hf_posenc.checkpoints.export import merge_adapter
from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import describe, is_patched


def load_unpatched(name_or_path: str | os.PathLike[str], **hf_kwargs: Any) -> tuple[nn.Module, str | None]:
    """Load a model; merge its PEFT adapter into the weights, and remove its scheme.

    Args:
        name_or_path, **hf_kwargs: as `from_pretrained` takes them.

    Returns:
        The model without scheme, and the name of the scheme it was saved with; None where it had none.

    Raises:
        NotExpressible: its adapter cannot be merged.
        PosEncError: as `from_pretrained`.
    """
    model = merge_adapter(from_pretrained(name_or_path, **hf_kwargs))
    if not is_patched(model):
        return model, None
    scheme = describe(model).scheme
    return unpatch_model(model), scheme
