"""Plots of the demo: cross-entropy loss against length, and passkey retrieval accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, MARKERS, figure, length_ticks, save_figure
from hf_posenc.eval.results.rows import Row


def loss_plot(rows: Sequence[Row], trained_length: int, path: Path) -> None:
    """Plot the loss of the same last tokens against length: one line per scheme, standard errors as thin bars."""
    chosen = [
        row for row in rows if row.metric == "nll" and row.depth is None and row.task in ("posenc_ppl", "posenc_mlm")
    ]
    schemes = list(dict.fromkeys(row.scheme for row in chosen))
    lengths = sorted({row.length for row in chosen if row.length is not None})
    canvas, axes = figure(8.0, 4.8)
    for number, scheme in enumerate(schemes):
        line = sorted((row for row in chosen if row.scheme == scheme), key=lambda row: row.length or 0)
        offset = 2 ** (0.02 * (number - (len(schemes) - 1) / 2))  # keep coinciding lines visible
        x, y = [offset * (row.length or 0) for row in line], [row.value for row in line]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(x, y, label=scheme, color=colour, marker=marker, markersize=6, linewidth=1.8, zorder=3)
        axes.errorbar(x, y, [row.stderr or 0.0 for row in line], fmt="none", ecolor=colour, alpha=0.5, linewidth=0.8)
    mark_trained(axes, trained_length)
    length_ticks(axes, lengths, trained_length)
    axes.set_xlabel("length (tokens, and multiples of the trained length)")
    axes.set_ylabel("cross-entropy loss (nats/token)")
    axes.set_title("Loss of the same last tokens, by context length", loc="left", fontsize=11)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    sort_legend_by_last_value(axes, chosen, lengths[-1])
    save_figure(canvas, path)


def mark_trained(axes: Any, trained_length: int, colour: str = "#555555", above: bool = False) -> None:
    """Mark the trained length by a dashed line, labelled inside the axes or above them."""
    axes.axvline(trained_length, color=colour, linestyle=(0, (4, 3)), linewidth=1.0, zorder=1)
    axes.annotate(
        "trained length",
        (trained_length, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3) if above else (4, -4),
        va="bottom" if above else "top",
        textcoords="offset points",
        fontsize=8,
        color=colour,
    )


def sort_legend_by_last_value(axes: Any, rows: Sequence[Row], longest: int) -> None:
    """Place a legend beside the axes, sorted by the lines' values at the longest length."""
    last = {row.scheme: row.value for row in rows if row.length == longest}
    handles, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(handles, labels, strict=True), key=lambda entry: -last.get(entry[1], 0.0))
    axes.legend(*zip(*pairs, strict=True), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def passkey_plot(rows: Sequence[Row], trained_length: int, path: Path) -> None:
    """Plot passkey retrieval accuracy as a heat map: schemes as rows, lengths as columns."""
    chosen = [row for row in rows if row.metric == "acc" and row.depth is None and row.task == "posenc_passkey"]
    schemes = list(dict.fromkeys(row.scheme for row in chosen))
    lengths = sorted({row.length for row in chosen if row.length is not None})
    found = {(row.scheme, row.length): 100 * row.value for row in chosen}
    grid = [[found.get((scheme, length), float("nan")) for length in lengths] for scheme in schemes]
    canvas, axes = figure(2.6 + 1.1 * len(lengths), 1.6 + 0.42 * len(schemes))
    image = axes.imshow(grid, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            axes.text(
                x, y, f"{value:.0f}", ha="center", va="center", fontsize=9, color="white" if value < 55 else "black"
            )
    axes.set_xticks(range(len(lengths)), [f"{length:,}\n{length / trained_length:g}×" for length in lengths])
    axes.set_yticks(range(len(schemes)), schemes)
    axes.set_xticks([x - 0.5 for x in range(1, len(lengths))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(schemes))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("length (tokens, and multiples of the trained length)")
    axes.set_title("Passkey retrieval, over all depths", loc="left", fontsize=11)
    canvas.colorbar(image, ax=axes, label="accuracy (%)", ticks=[0, 25, 50, 75, 100])
    save_figure(canvas, path)
