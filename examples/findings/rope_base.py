"""The base of RoPE bounds the context length: with a small base, the loss stays low but distant text is not used."""

from __future__ import annotations

from laboratory.trained import tuned
from verdict import Finding, Metric, better, main

FACTOR = 4.0
BASES = {"base 500": 500.0, "base 10,000": 10_000.0, "base 1,000,000": 1_000_000.0}
SMALL, MIDDLE, LARGE = BASES
GAIN = Metric("copy gain", "nats/token", True)
OPTIONS = {
    "scores": {"loss": ("posenc_ppl", "nll"), GAIN.name: ("posenc_copy_gain", "gain_over_other")},
}

FINDING = Finding(
    claim="A context length needs a base of RoPE above a bound. Trained for that length with a smaller base, a "
    "model has nearly the same loss, but uses far text less: its long context is superficial.",
    source="Men et al. 2024, Base of RoPE Bounds Context Length, arXiv:2405.14591, figure 1 and sections 4 and 5",
    against="After the same training for four times the length: with a base above the bound, far text is surely "
    "used no more than with one below; or a loss below the bound that is more than a tenth of a nat higher.",
    limits="With 12 pairs, Σ cos(m θ_i) is positive at all distances m up to 1,024 for a base of 1,000,000, and "
    "not for 500 and 10,000. The source trains models of billions of weights. Use of far text is the copy gain. "
    "One run: the intervals are over documents.",
    variants={
        label: {
            "scheme": "abf",
            "options": {"base": base},
            "recipe": "full_length",
            "training": {"method": "full", "batch": 2},
        }
        for label, base in BASES.items()
    },
    points=(1.0, FACTOR),
    metrics=(Metric("loss"), GAIN),
    claims=(
        better(first=SMALL, second=LARGE, at=FACTOR, margin=-0.1),
        better(first=LARGE, second=SMALL, at=FACTOR, metric=GAIN.name),
        better(first=LARGE, second=MIDDLE, at=FACTOR, metric=GAIN.name),
    ),
    full={**OPTIONS, "training": {"steps": 40}, "samples": 24},
    quick={"training": {"steps": 10}, "samples": 8},
    measure=tuned,
)

if __name__ == "__main__":
    main(FINDING)
