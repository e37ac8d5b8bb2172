"""Check of native export: plain transformers computes the same from an exported RoPE scheme."""

from __future__ import annotations

import warnings
from tempfile import TemporaryDirectory

from hf_posenc.checkpoints.export import export_native
from hf_posenc.checkpoints.native_parameters import rope_parameters_of
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import NotExpressible, OnlyWithinTrainedLength


@register_check("native_export", needs_copy=True)
def native_export_equals_patched(case: Case) -> Deviation:
    """A model exported to a RoPE type of transformers, loaded without this package, equals the patched model.

    RoPE types that depend on the text's length are compared at the trained length.
    """
    if case.rotary is None:
        return case.deviation("native_export", 0.0, "no token: the unpatched model has no RoPE")
    with case.patched() as model, TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", OnlyWithinTrainedLength)
        try:
            short = rope_parameters_of(model).short
        except NotExpressible:
            return case.deviation("native_export", 0.0, "no token: transformers has no such RoPE type")
        export_native(model, folder)
        tokens = random_tokens(model, case.trained_length if short else 2 * case.trained_length + 6)
        plain = type(model).from_pretrained(folder, dtype=model.dtype).eval()
        value, where = max_deviation(forward(plain, tokens), forward(model, tokens))
    return case.deviation("native_export", value, where)
