"""Put the comparisons of several models side by side.

A line of the combined comparison is an entry on a model: ``base · yarn``, ``fine-tuned · yarn``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hf_posenc.eval.comparison.models import short_names
from hf_posenc.eval.results.comparison import Comparison


def combined(parts: Sequence[Comparison]) -> Comparison:
    """Combine comparisons that one run has made of several models, with one text and one tokenizer."""
    if len(parts) == 1:
        return parts[0]
    first, names = parts[0].about, [part.about["model"] for part in parts]
    short = short_names(names)
    models: list[dict[str, Any]] = []
    schemes: list[dict[str, Any]] = []
    records, tried = [], []
    for part in parts:
        about, model = part.about, part.about["model"]
        digest = about["digests"]["model"]
        models.append({
            "name": model, "scheme": about["model_scheme"], "trained_length": about["trained_length"],
            "digest": digest,
        })  # fmt: skip
        schemes += [
            {"entry": one["label"], **one, "label": f"{short[model]} · {one['label']}", "model": model,
             "model_digest": digest}
            for one in about["schemes"]
        ]  # fmt: skip
        records += [replace(record, scheme=f"{short[model]} · {record.scheme}") for record in part.records]
        tried += [{"model": model, **choice} for choice in about.get("tuned", {"options": ()})["options"]]
    about = first | {
        "model": ", ".join(names), "models": models, "schemes": schemes, "model_scheme": None,
        "trained_length": min(model["trained_length"] for model in models),
        "gates": [gate for part in parts for gate in part.about["gates"]],
    }  # fmt: skip
    if tried:
        about["tuned"] = first["tuned"] | {"options": tried}
    return Comparison(about, records)
