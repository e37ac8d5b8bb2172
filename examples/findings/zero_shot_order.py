"""Zero-shot loss past the trained length: which way of stretching RoPE hurts least."""

from __future__ import annotations

from itertools import pairwise

from lab.claims import LOSS, Order
from lab.finding import Budget, Finding
from lab.run import main
from lab.sweep import sweep

VARIANTS = {
    "unpatched": "unpatched",
    "pi": "pi",
    "ntk, doubled factor": {"entry": "ntk", "stretch": 2.0},
    "yarn": "yarn",
    "rerope": "rerope",
    "ntk": "ntk",
}
CHAIN = tuple(VARIANTS)[:-1]
"""From the highest loss to the lowest, as published. NTK-aware scaling takes a larger factor than the length asks for,
as its source says (YaRN, section 3.1); it is measured with the plain factor as well, and not judged."""
FACTORS = (4.0, 8.0)
SCORES = {"loss": ("posenc_ppl", "nll")}

FINDING = Finding(
    name="zero_shot_order",
    claim="Past the trained length and without fine-tuning, loss falls in the order unscaled RoPE, position "
    "interpolation, NTK-aware scaling, YaRN, remapped positions (ReRoPE).",
    source="YaRN, arXiv:2309.00071, figure 1; Su 2023, ReRoPE, kexue.fm/archives/9708",
    against="A method of the list whose loss at 4 or 8 times the trained length is surely higher than that of the "
    "one before it.",
    limits="The published curves are of 7B models on books. A model of a few million weights trained on 256 tokens "
    "shows the signs of the differences, and not their sizes.",
    variants=VARIANTS,
    points=(1.0, 2.0, 4.0, 8.0),
    axis="length, multiples of the trained length",
    point_format="{:g}×",
    metrics=(LOSS,),
    claims=tuple(Order(better=better, worse=worse, at=at) for at in FACTORS for worse, better in pairwise(CHAIN)),
    full=Budget(options={"scores": SCORES, "samples": 96}),
    quick=Budget(options={"scores": SCORES, "samples": 8, "scored": 32}),
    measure=sweep,
    model="starter:llama",
)

if __name__ == "__main__":
    main(FINDING)
