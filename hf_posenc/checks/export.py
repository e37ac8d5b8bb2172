"""Check of export: where a scheme names a RoPE type of transformers, transformers computes the same from it."""

from __future__ import annotations

import warnings
from tempfile import TemporaryDirectory

from hf_posenc.checkpoints.export import export_native, native_parameters
from hf_posenc.checks.case import Case
from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.forward import forward, max_deviation, random_tokens
from hf_posenc.checks.registry import register_check
from hf_posenc.errors import NotExpressible, OnlyWithinTrainedLength


@register_check("native", copies=True)
def native_export_agrees(pair: Case) -> Deviation:
    """An export of a host that rotates reads, without this package, as the patched model.

    Of types that go by the length of a text, texts of the trained length are read.
    """
    if pair.rotary is None:
        return pair.gap("native", 0.0, "no token: the host has no rotation of its own")
    with pair.patched() as model, TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", OnlyWithinTrainedLength)
        try:
            _, short = native_parameters(model)
        except NotExpressible:
            return pair.gap("native", 0.0, "no token: no type is named")
        export_native(model, folder)
        tokens = random_tokens(model, pair.trained if short else 2 * pair.trained + 6)
        plain = type(model).from_pretrained(folder, dtype=model.dtype).eval()
        value, where = max_deviation(forward(plain, tokens), forward(model, tokens))
    return pair.gap("native", value, where)
