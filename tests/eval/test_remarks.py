"""Remarks of a comparison: one sentence for schemes that share it."""

from __future__ import annotations

from hf_posenc.eval.report.remarks import remarks
from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.record import Record


def made(reasons: dict[str, dict[tuple[str, int], str]]) -> Comparison:
    """A comparison of cells that failed for a reason, or have none and are done."""
    records = [
        Record(f"{label}{cell}", label, *cell, "failed" if reason else "done", reason, [], 0.0, {})
        for label, cells in reasons.items()
        for cell, reason in cells.items()
    ]
    schemes = [{"label": label, "scheme": label, "options": {}, "needs_training": False} for label in reasons]
    about = {"model": "m", "model_scheme": None, "trained_length": 256, "lengths": [64, 256, 1024], "schemes": schemes}
    return Comparison(about, records)


def test_a_reason_is_said_once_for_all_that_share_it() -> None:
    short = {("posenc_ppl", 1024): "Too short.", ("posenc_ppl", 256): "Too short.", ("posenc_passkey", 64): ""}
    assert remarks(made({"unpatched": short, "yarn": short})) == ["Failed at posenc_ppl 256, 1024. Too short."]
    whole = dict.fromkeys(short, "")
    assert remarks(made({"unpatched": whole, "yarn": short, "pi": short})) == [
        "yarn, pi: failed at posenc_ppl 256, 1024. Too short."
    ]
    other = short | {("posenc_passkey", 64): "Too short."}
    assert remarks(made({"unpatched": whole, "yarn": short, "pi": other})) == [
        "yarn: failed at posenc_ppl 256, 1024. Too short.",
        "pi: failed. Too short.",
    ]
