"""Draw docs/pictures/real_model.png and docs/demo.png: each row is a scheme, each dot a length.

Within a row, every length has its own height, so dots never cover each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_posenc.core.plotting import COLOURS, MARKERS, panels, save_figure
from hf_posenc.schemes.entry import UNPATCHED

Losses = Mapping[tuple[str, int], Mapping[str, float]]
"""Loss of each window, by scheme and length."""
Values = Mapping[tuple[str, int], float]
"""Numbers by scheme and length."""
HUES = COLOURS[7], COLOURS[5], COLOURS[4], COLOURS[3], COLOURS[6]
"""Colours of the lengths, shortest first."""
FILLED = 0.72  # share of the height of a row over which its dots are spread
LOSS, FOUND = "loss (nats/token; lower is better)", "passkeys found (%; higher is better)"


def ranked(losses: Losses) -> list[str]:
    """Schemes by their mean loss at the longest length, lowest first."""
    far = max(length for _, length in losses)
    reaching = {scheme for scheme, length in losses if length == far}
    return sorted(reaching, key=lambda scheme: fmean(losses[scheme, far].values()))


def draw_real_model(losses: Losses, path: Path) -> None:
    """Draw the loss of a real model, legible at the width of a phone."""
    means = {cell: fmean(by_window.values()) for cell, by_window in losses.items()}
    draw("SmolLM2-135M beyond its 8,192 trained tokens", ranked(losses), {LOSS: means}, 4.6, path)


def draw_demo(losses: Values, accuracies: Values, path: Path) -> None:
    """Draw loss and passkeys of a demo; the scheme that finds most passkeys at the longest length comes first."""
    far = max(length for _, length in losses)
    schemes = sorted({scheme for scheme, _ in losses}, key=lambda one: (-accuracies[one, far], losses[one, far]))
    shares = {cell: 100 * value for cell, value in accuracies.items()}
    draw("A Llama trained on 256 tokens, factor 8 at every length", schemes, {LOSS: losses, FOUND: shares}, 6.6, path)


def draw(title: str, schemes: Sequence[str], named: Mapping[str, Values], width: float, path: Path) -> None:
    """Draw one panel per quantity."""
    lengths = sorted({length for values in named.values() for _, length in values})
    row = 0.22 + 0.07 * len(lengths)  # inches
    canvas, grid = panels(width, 1.2 + row * len(schemes), 1, len(named), shared=False)
    for axes, (name, values) in zip(grid, named.items(), strict=True):
        draw_rows(axes, schemes, lengths, values, "{:.2f}" if name == LOSS else "{:.0f}")
        axes.set_xlabel(name)
    for axes in grid[1:]:
        axes.set_yticklabels([])
    canvas.suptitle(title, fontsize=10, x=0.01, ha="left")
    canvas.legend(
        *grid[0].get_legend_handles_labels(), loc="outside lower left", ncols=len(lengths), frameon=False,
        handletextpad=0.2, columnspacing=1.0,
    )  # fmt: skip
    save_figure(canvas, path)


def draw_rows(axes: Any, schemes: Sequence[str], lengths: Sequence[int], values: Values, form: str) -> None:
    """Draw the dots of every row, a line at the unpatched model's value, and the number at the longest length."""
    for number, length in enumerate(lengths):
        rows = [row for row, scheme in enumerate(schemes) if (scheme, length) in values]
        axes.plot(
            [values[schemes[row], length] for row in rows],
            [row + FILLED * ((number + 0.5) / len(lengths) - 0.5) for row in rows], MARKERS[number],
            color=HUES[number % len(HUES)], markersize=5, label=f"{length:,} ({length // lengths[0]}×)",
        )  # fmt: skip
    for row, scheme in enumerate(schemes):
        axes.text(
            0.98, row, form.format(values[scheme, lengths[-1]]), ha="right", va="center", fontsize=9,
            color=HUES[(len(lengths) - 1) % len(HUES)], fontweight=weight(scheme), transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    low, high = min(values.values()), max(values.values())
    axes.axvline(values[UNPATCHED, lengths[0]], color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=0)
    axes.set_xlim(low - 0.06 * (high - low), high + 0.25 * (high - low))
    axes.set_xticks([tick for tick in axes.get_xticks() if low <= tick <= high])
    name_rows(axes, schemes)


def name_rows(axes: Any, schemes: Sequence[str]) -> None:
    """Label the rows with schemes, on stripes; the unpatched model is bold."""
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
    """Weight of the font: bold for the unpatched model."""
    return "bold" if scheme == UNPATCHED else "normal"
