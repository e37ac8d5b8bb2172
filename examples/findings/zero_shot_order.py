"""Zero-shot loss past the trained length: which way of stretching RoPE hurts least."""

from __future__ import annotations

from itertools import pairwise

from laboratory.trained import with_scheme
from verdict import Finding, Metric, better, main

VARIANTS = {
    "unpatched": {},
    "pi": {"scheme": "pi"},
    "ntk, doubled factor": {"scheme": "ntk", "stretch": 2.0},
    "yarn": {"scheme": "yarn"},
    "rerope": {"scheme": "rerope"},
    "ntk": {"scheme": "ntk"},
}
CHAIN = tuple(VARIANTS)[:-1]
"""From the highest loss to the lowest, as published. NTK-aware scaling takes a larger factor than the length asks for,
as its source says (YaRN, section 3.1); it is measured with the plain factor as well, and not judged."""
FACTORS = (4.0, 8.0)
SCORES = {"loss": ("posenc_ppl", "nll")}

FINDING = Finding(
    claim="Past the trained length and without fine-tuning, loss falls in the order unscaled RoPE, position "
    "interpolation, NTK-aware scaling, YaRN, remapped positions (ReRoPE).",
    source="YaRN, arXiv:2309.00071, figure 1; Su 2023, ReRoPE, kexue.fm/archives/9708",
    against="A method of the list whose loss at 4 or 8 times the trained length is surely higher than that of the "
    "one before it.",
    limits="The published curves are of 7B models on books. A model of a few million weights trained on 256 tokens "
    "shows the signs of the differences, and not their sizes.",
    variants=VARIANTS,
    points=(1.0, 2.0, 4.0, 8.0),
    metrics=(Metric("loss"),),
    claims=tuple(better(second, first, at) for at in FACTORS for first, second in pairwise(CHAIN)),
    full={"scores": SCORES, "samples": 96},
    quick={"samples": 8, "scored": 32},
    measure=with_scheme,
)

if __name__ == "__main__":
    main(FINDING)
