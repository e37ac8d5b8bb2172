"""A number added to every channel is what LayerNorm takes away."""

from __future__ import annotations

from typing import Any

from teaching import Result, Table, lesson
from tiny_models import (
    SAME,
    apart,
    hidden,
    named,
    tokens,
)

from hf_posenc.checks.tiny_models import tiny_model
from hf_posenc.patching.patch import patch_model

SENTENCE = "the dog chased another dog down the road"
NORMS = {"gpt2": "LayerNorm", "bert": "LayerNorm", "llama": "RMSNorm"}
CODES: dict[str, tuple[str, dict[str, Any]]] = {
    "integer in all channels": ("integer", {}),
    "integer with random signs": ("integer", {"direction": "random"}),
    "norm01 in all channels": ("norm01", {}),
}
ROUNDED = 2e-3  # numbers up to 7 added before a norm leave so much less of the digits


@lesson("Why does counting 0, 1, 2 … do nothing in GPT-2 and BERT?")
def layernorm() -> Result:
    """Each model with the position's number added to all channels, against the same with no positions."""
    ids = tokens(SENTENCE)
    rows = []
    for model, norm in NORMS.items():
        none = hidden(patch_model(tiny_model(model), "none"), ids)
        for name, (scheme, options) in CODES.items():
            rows.append(
                (model, norm, name, apart(hidden(patch_model(tiny_model(model), scheme, **options), ids), none))
            )
    shows = """The simplest code is the position's own number, added to all channels of a word. LayerNorm subtracts the
        mean over channels, and with it whatever all of them have in common; RMSNorm only divides. Outputs are compared
        with those of the same model without positions."""
    unseen = [f"{name} in {model}" for model, _, name, moved in rows if moved < ROUNDED]
    norms = {norm for _, norm, name, moved in rows if moved < ROUNDED}
    seen = {norm for _, norm, name, moved in rows if moved >= SAME * 100 and "all channels" in name}
    conclusion = (
        f"Nothing but rounding is left of {named(unseen)}. What all channels share is lost behind "
        f"{named(sorted(norms))}"
        + (f" and seen behind {named(sorted(seen - norms))}" if seen - norms else "")
        + "; the same numbers with random signs are seen everywhere."
        * all(moved >= ROUNDED for _, _, name, moved in rows if "random" in name)
    )
    return shows, [Table(("model", "norm", "code", "largest difference to no positions"), tuple(rows))], conclusion


if __name__ == "__main__":
    layernorm.main()
