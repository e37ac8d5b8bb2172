"""The lm-eval model types of this package; `pyproject.toml` names them as entry points."""

from __future__ import annotations

from hf_posenc.core.lazy import explained_imports
from hf_posenc.core.tested_versions import beyond_tested

with explained_imports():
    from hf_posenc.eval.lm.causal_lm import PosEncLM
    from hf_posenc.eval.lm.masked_lm import PosEncMLM
    from hf_posenc.eval.lm.register import register_models

    register_models()

__all__ = ["PosEncLM", "PosEncMLM"]

beyond_tested("lm-eval")
