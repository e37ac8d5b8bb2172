"""Register our model types with lm-eval."""

from __future__ import annotations

MODEL_TYPES = {"hf_posenc": "PosEncLM", "hf_posenc_mlm": "PosEncMLM"}
"""lm-eval model types and their classes in `hf_posenc.eval.lm.models`."""


def register_models() -> None:
    """Make ``hf_posenc`` and ``hf_posenc_mlm`` known to lm-eval, which does not read entry points before 0.5.

    lm-eval registers its own model types when it looks one up in an empty registry; they are registered first here.
    """
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    for name, cls in MODEL_TYPES.items():
        if name not in model_registry:
            model_registry.register(name, target=f"hf_posenc.eval.lm.models:{cls}")
