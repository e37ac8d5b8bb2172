"""Pictures of measured evidence: a real model beyond its trained length, from docs/real_model.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_posenc.core.plotting import COLOURS, MARKERS, figure, save_figure
from hf_posenc.schemes.entry import UNPATCHED

Losses = Mapping[tuple[str, int], Mapping[str, float]]
"""Loss of each window, by scheme and length."""
HUES = COLOURS[7], COLOURS[5], COLOURS[4], COLOURS[3]
"""Of the lengths, shortest first."""
APART = 0.24  # of a row, between the dots of two lengths


def ranked(found: Losses) -> list[str]:
    """The schemes, lowest mean loss at the longest length first."""
    far = max(length for _, length in found)
    return sorted(
        {scheme for scheme, length in found if length == far}, key=lambda one: fmean(found[one, far].values())
    )


def draw_real_model(found: Losses, path: Path) -> None:
    """Draw a row for each scheme and a dot for each length, legible at the width of a phone."""
    schemes, lengths = ranked(found), sorted({length for _, length in found})
    canvas, axes = figure(4.6, 1.5 + 0.36 * len(schemes))
    means = {cell: fmean(by_window.values()) for cell, by_window in found.items()}
    for number, length in enumerate(lengths):
        rows = [row for row, scheme in enumerate(schemes) if (scheme, length) in means]
        down = [row + APART * (number - (len(lengths) - 1) / 2) for row in rows]
        axes.plot(
            [means[schemes[row], length] for row in rows], down, MARKERS[number], color=HUES[number % len(HUES)],
            markersize=6, label=f"{length:,} ({length // lengths[0]}×)",
        )  # fmt: skip
    for row, scheme in enumerate(schemes):
        values = [means[scheme, length] for length in lengths if (scheme, length) in means]
        axes.annotate(
            f"{values[-1]:.2f}", (max(values), row), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9,
            fontweight=weight(scheme),
        )  # fmt: skip
    axes.axvline(means[UNPATCHED, lengths[0]], color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=0)
    name_rows(axes, schemes)
    low, high = min(means.values()), max(means.values())
    axes.set_xlim(low - 0.06 * (high - low), high + 0.16 * (high - low))
    axes.set_xlabel("loss (nats/token; lower is better)")
    canvas.suptitle("SmolLM2-135M beyond its 8,192 trained tokens", fontsize=10, x=0.01, ha="left")
    canvas.legend(loc="outside lower left", ncols=len(lengths), frameon=False, handletextpad=0.2, columnspacing=1.0)
    save_figure(canvas, path)


def name_rows(axes: Any, schemes: Sequence[str]) -> None:
    """Name the schemes down the side, on stripes; the unpatched model in bold."""
    axes.set_yticks(range(len(schemes)), schemes)
    axes.set_ylim(len(schemes) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for row, (scheme, label) in enumerate(zip(schemes, axes.get_yticklabels(), strict=True)):
        label.set_fontweight(weight(scheme))
        if scheme == UNPATCHED:
            axes.axhspan(row - 0.5, row + 0.5, color=COLOURS[1], alpha=0.18, linewidth=0)
        elif row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="#000000", alpha=0.04, linewidth=0)


def weight(scheme: str) -> str:
    """The unpatched model stands out."""
    return "bold" if scheme == UNPATCHED else "normal"
