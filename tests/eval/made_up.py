"""Comparisons with invented measurements, for tests of tables and pages."""

from __future__ import annotations

from typing import Any

from hf_posenc.eval.results.comparison import Comparison
from hf_posenc.eval.results.store import Record


def made_up(records: list[Record], **about: Any) -> Comparison:
    """A comparison with invented measurements."""
    labels = dict.fromkeys(record.scheme for record in records)
    schemes = [
        {"label": label, "scheme": None if label == "unpatched" else label, "options": {}, "needs_training": False}
        for label in labels
    ]
    usual = {
        "model": "m", "model_scheme": None, "trained_length": 256, "schemes": schemes, "samples": 16, "scored": 64,
        "keys": 8, "seed": 0, "limit": None, "text": None, "command": None, "digests": {},
        "versions": {"python": "3.11"}, "tasks": list(dict.fromkeys(record.task for record in records)),
        "lengths": list(dict.fromkeys(record.length for record in records)), "depths": [0.0, 0.5, 1.0],
    }  # fmt: skip
    return Comparison(usual | about, records)
