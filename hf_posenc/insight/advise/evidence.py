"""Evidence of how far each scheme extends a model: measurements of this package, and published claims.

``python docs/make_evidence.py`` makes ``measured.json`` from ranked comparisons on a bundled model at 4 and 8 times its
trained length. `hf_posenc.advise`, docs/choose.md and the README read it, so that all three recommend the same. The
file also has measurements on a real model. They are cited first, but cover too few schemes to rank all.

Measured schemes are sorted by their best possible place in passkey retrieval, given the significant differences. Ties
are sorted by the best possible place in loss, then by mean loss to two digits, then by prefill time. A loss alone does
not show what was forgotten, and places alone leave ties.

Published claims rank after measurements. Each has its source, and holds for the printed options. Among equals, the
scheme that changes the model least comes first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class MeasuredScore:
    """A score at the longest measured length.

    Attributes:
        value: mean over documents.
        low, high: 95 % interval.
        at_trained: score of the same scheme and factor at the trained length.
        n: number of documents.
        first: best possible place: 1 plus the number of schemes that are significantly better.
        command: command that repeats the measurement.
    """

    value: float
    low: float
    high: float
    at_trained: float
    n: int
    first: int
    command: str


@dataclass(frozen=True)
class MeasuredRow:
    """Zero-shot measurement of a scheme on a bundled model, with the options that `compare` chooses.

    Attributes:
        model: name of the model.
        trained_length, length: tokens.
        scheme: name of the scheme, or ``unpatched``.
        loss: cross-entropy loss of the same last tokens, nats/token.
        passkeys: share of passkeys found.
        prefill, decode: time relative to the unpatched model; None if it was not measured.
        finds: whether it finds more than half of the passkeys, and significantly more than the unpatched model.
    """

    model: str
    trained_length: int
    length: int
    scheme: str
    loss: MeasuredScore
    passkeys: MeasuredScore
    prefill: float | None
    decode: float | None
    finds: bool

    @property
    def factor(self) -> float:
        """Length divided by trained length: the factor of the patch."""
        return self.length / self.trained_length

    @property
    def order(self) -> tuple[int, int, float, float]:
        """Sort key, smaller is better."""
        return self.passkeys.first, self.loss.first, round(self.loss.value, 2), self.prefill or 0.0

    def __str__(self) -> str:
        return (
            f"measured at {self.factor:g} × on {self.model}: loss {self.loss.value:.2f}, "
            f"{100 * self.passkeys.value:.0f} % of passkeys"
        )


@dataclass(frozen=True)
class RealRow:
    """Zero-shot measurement of a scheme on a real model, and of the unpatched model.

    Attributes:
        model: name of the model.
        factor: length divided by trained length: the factor of the patch.
        loss, unpatched_loss: cross-entropy loss of the same last tokens, nats/token.
        found, unpatched_found: how many of the hidden numbers were found.
        hidden: how many numbers were hidden in texts of this length.
    """

    model: str
    factor: float
    loss: float
    unpatched_loss: float
    found: int
    unpatched_found: int
    hidden: int

    def __str__(self) -> str:
        return (
            f"measured at {self.factor:g} × on {self.model}: "
            f"loss {self.loss:.2f} (unpatched {self.unpatched_loss:.2f}), "
            f"{self.found} of {self.hidden} hidden numbers found (unpatched {self.unpatched_found})"
        )


def real_rows() -> dict[str, RealRow]:
    """Return the measurements on a real model, by scheme."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))["real"]
    return {scheme: RealRow(**row) for scheme, row in rows.items()}


def measured_rows() -> tuple[MeasuredRow, ...]:
    """Return all rows, the unpatched model included, by factor, then best first."""
    rows = [
        MeasuredRow(**row | {name: MeasuredScore(**row[name]) for name in ("loss", "passkeys")})
        for row in json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    ]
    return tuple(sorted(rows, key=lambda row: (row.factor, row.order)))


def measured_for(factor: float) -> dict[str, MeasuredRow]:
    """Return one row per scheme: at the smallest measured factor of at least ``factor``, else at the largest."""
    rows: dict[str, MeasuredRow] = {}
    for row in measured_rows():
        if row.scheme not in rows or rows[row.scheme].factor < factor:
            rows[row.scheme] = row
    return rows


def measured_at(factor: float) -> list[MeasuredRow]:
    """Return the rows of one factor, best first."""
    return [row for row in measured_rows() if row.factor == factor]


PositionKind = Literal["rotation", "table", "bias"]


@dataclass(frozen=True)
class Shown:
    """A scheme to recommend, with its published claim.

    Attributes:
        scheme: name or composition.
        kind: where models that it fits keep positions.
        factor: published target length divided by trained length; None if no figure is published.
        claim: the claim in words; empty if only measurements support the scheme.
        source: arXiv id or address of the claim.
        encoders: whether it suffices in an encoder, which has no causal mask to show the order of tokens.
    """

    scheme: str
    kind: PositionKind
    factor: float | None
    claim: str
    source: str
    encoders: bool = True


ZERO_SHOT = (
    Shown("rerope", "rotation", 4, "Llama-2-13B's loss goes on falling from 4k to 16k", "github.com/bojone/rerope"),
    Shown("self_extend", "rotation", 4, "passkeys are found at four times the trained length", "arXiv:2401.01325"),
    Shown(
        "dpe",
        "rotation",
        None,  # the published 16 are of searched groups, as with longrope below
        "with groups by `compare --tune`, Llama 3 8B went from 8k to 128k",
        "arXiv:2504.18857",
    ),
    Shown("dca", "rotation", 8, "4k Llama-2 reads 32k at 7B and 13B, over 100k at 70B", "arXiv:2402.17463"),
    Shown("jet_long", "rotation", 4, "32k Qwen3 models lead RULER up to 128k, by 2 to 5 points", "arXiv:2607.07740"),
    Shown("mrrope", "rotation", 16, "8k Llama-3-8B reaches 87 on RULER at 128k, YaRN 80", "arXiv:2601.22181"),
    Shown("ntk", "rotation", 4, "Llama-2-13B reads 16k at a loss of 1.52, against 1.50", "github.com/bojone/rerope"),
    Shown("yarn", "rotation", 2, "more than twice the length if the factor follows it", "arXiv:2309.00071"),
    Shown(
        "yarn+resonance",
        "rotation",
        None,  # the published 8 are with training
        "tuned for 50 steps on 32k, Llama-2 is ahead of YaRN",
        "arXiv:2403.00071",
    ),
    Shown("sinks", "rotation", 976, "4k Llama-2 streams four million tokens", "arXiv:2309.17453"),
    Shown("lm_infinite", "rotation", 48_828, "4k models stay fluent over 200M tokens", "arXiv:2308.16137"),
    Shown("alibi", "bias", None, "slopes over the factor extrapolate better than the model's own", "arXiv:2310.13017"),
    Shown("sinks", "bias", 1953, "MPT, trained on 2k, streams four million tokens", "arXiv:2309.17453"),
)

WITH_TRAINING = (
    Shown("yarn", "rotation", 32, "Llama-2 went from 4k to 128k", "arXiv:2309.00071"),
    Shown("yarn+pose", "rotation", 64, "LLaMA went from 2k to 128k while trained on 2k", "arXiv:2309.10400"),
    Shown(
        "longrope",
        "rotation",
        None,  # the published 512 are of searched factors, which the printed line does not have
        "with factors from examples/search_longrope.py, Llama-2 went from 4k to 2048k",
        "arXiv:2402.13753",
    ),
    Shown("llama3", "rotation", 16, "Llama 3.1 went from 8k to 128k", "arXiv:2407.21783"),
    Shown("pi", "rotation", 16, "LLaMA went from 2k to 32k within 1000 steps", "arXiv:2306.15595"),
    Shown("abf", "rotation", 8, "Llama 2 Long went from 4k to 32k", "arXiv:2309.16039"),
    Shown("drope", "rotation", 2, "finds more needles at twice the length than scaled RoPE", "arXiv:2512.12167", False),
    Shown("learned_interp", "table", 8, "Longformer began with 512 rows repeated to 4096", "arXiv:2004.05150"),
    Shown("learned_hier", "table", None, "a short tuning suffices, its author reports", "kexue.fm/archives/7947"),
    Shown("kerple", "table", 32, "trained from scratch on 512, holds to 16k", "arXiv:2205.09921", False),
    Shown("alibi", "table", 6, "trained from scratch on 512, reads 3072", "arXiv:2108.12409"),
    Shown("fire", "table", 4, "trained from scratch on 2048, best at 8192", "arXiv:2310.04418", False),
    Shown("rope", "table", None, "reads what it was tuned on, and little beyond", "arXiv:2104.09864"),
    Shown("t5", "table", 2, "trained from scratch on 512, reads some 600 tokens more", "arXiv:2108.12409"),
)

SEARCHED = ("longrope",)
"""Schemes whose options are searched per model; measurements without a search do not count for them."""


def zero_shot_candidates() -> list[Shown]:
    """Return the published schemes, and those that found significantly more passkeys than the unpatched model."""
    published = {shown.scheme for shown in ZERO_SHOT} | set(SEARCHED)
    measured = dict.fromkeys(row.scheme for row in measured_rows() if row.finds and row.scheme not in published)
    return [*ZERO_SHOT, *(Shown(scheme, "rotation", None, "", "", encoders=False) for scheme in measured)]
