"""BERT past the end of its position table: hierarchical codes and interpolation, without training."""

from __future__ import annotations

from laboratory.trained import with_scheme
from verdict import Finding, Metric, better, main

RECALL = Metric("recall", "share", True)
SCORES = {"loss": ("posenc_mlm", "nll"), "recall": ("posenc_mlm", "recall")}
HIER, INTERP, NONE = "learned_hier", "learned_interp", "none"

FINDING = Finding(
    claim="A BERT reads texts past the end of its position table without training, by positions of two digits over "
    "its rows or by interpolation between them: better than with no positions, and with little more loss than "
    "within the table.",
    source="Su 2020, Hierarchical decomposition of position codes, kexue.fm/archives/7947; for interpolation "
    "Chen et al. 2023, arXiv:2306.15595, whose idea is applied to a table here",
    against="A loss of masked tokens that rises by more than a tenth of a nat over that within the table, or that "
    "is no lower than with no positions at all.",
    limits="The source extends a RoBERTa of 512 positions, and trains it after that, as examples/extend_bert.py "
    "does; here a BERT of 256 positions is used as it is. Masked tokens are predicted from their neighbourhood, "
    "and do not show whether far text is used.",
    variants={name: {"scheme": name} for name in (HIER, INTERP, NONE)},
    points=(1.0, 2.0, 4.0, 8.0),
    metrics=(Metric("loss"), RECALL),
    claims=tuple(
        claim
        for codes in (HIER, INTERP)
        for claim in (
            better(first=codes, second=codes, at=4.0, second_at=1.0, margin=-0.1),
            better(first=codes, second=NONE, at=4.0),
        )
    ),
    full={"model": "bert", "scores": SCORES, "samples": 32},
    quick={"samples": 8},
    measure=with_scheme,
)

if __name__ == "__main__":
    main(FINDING)
