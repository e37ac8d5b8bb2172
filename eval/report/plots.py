"""Plots of the demo: loss and passkey retrieval against length, side by side and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.core.plotting.figures import COLOURS, MARKERS, figure, length_ticks, save_figure
from hf_posenc.eval.results.rows import Row

LENGTH = "length (tokens, and multiples of the trained length)"
LOSS = "cross-entropy loss (nats/token)"


def loss_plot(rows: Sequence[Row], trained_length: int, path: Path, protocol: str) -> None:
    """Plot the loss of the same last tokens against length: one line per scheme, standard errors as thin bars.

    Args:
        rows: of all schemes.
        trained_length: tokens.
        path: of the picture.
        protocol: which factor the schemes have, for the title.
    """
    chosen = losses(rows)
    canvas, axes = figure(8.0, 4.8)
    draw_lines(axes, chosen, trained_length)
    axes.set_ylabel(LOSS)
    axes.set_title(f"Loss of the same last tokens, {protocol}", loc="left", fontsize=11)
    sort_legend_by_last_value(axes, axes, chosen)
    save_figure(canvas, path)


def overview_plot(rows: Sequence[Row], trained_length: int, path: Path, protocol: str) -> None:
    """Plot loss and passkey retrieval against length side by side; arguments as of `loss_plot`."""
    canvas, axes = figure(11.0, 4.2)
    axes.remove()
    left, right = canvas.subplots(1, 2)
    chosen = losses(rows)
    draw_lines(left, chosen, trained_length)
    draw_lines(right, passkeys(rows), trained_length, scale=100)
    left.set_title("Loss of the same last tokens (lower is better)", loc="left", fontsize=10)
    left.set_ylabel(LOSS)
    right.set_title("Passkeys found (higher is better)", loc="left", fontsize=10)
    right.set_ylabel("accuracy (%)")
    right.set_ylim(-4, 114)  # room for the label of the trained length
    right.set_yticks(range(0, 101, 20))
    canvas.suptitle(f"A Llama trained on {trained_length} tokens, {protocol}", fontsize=11)
    sort_legend_by_last_value(left, right, chosen)
    save_figure(canvas, path)


def losses(rows: Sequence[Row]) -> list[Row]:
    """The losses over all depths."""
    return [r for r in rows if r.metric == "nll" and r.depth is None and r.task in ("posenc_ppl", "posenc_mlm")]


def passkeys(rows: Sequence[Row]) -> list[Row]:
    """The shares of passkeys that are found, over all depths."""
    return [row for row in rows if row.metric == "acc" and row.depth is None and row.task == "posenc_passkey"]


def draw_lines(axes: Any, rows: Sequence[Row], trained_length: int, scale: float = 1.0) -> None:
    """Draw one metric against length: a line for every scheme, standard errors as thin bars, values times ``scale``."""
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    for number, scheme in enumerate(schemes):
        line = sorted((row for row in rows if row.scheme == scheme), key=lambda row: row.length or 0)
        offset = 2 ** (0.02 * (number - (len(schemes) - 1) / 2))  # keep coinciding lines visible
        x, y = [offset * (row.length or 0) for row in line], [scale * row.value for row in line]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(x, y, label=scheme, color=colour, marker=marker, markersize=6, linewidth=1.8, zorder=3)
        errors = [scale * (row.stderr or 0.0) for row in line]
        axes.errorbar(x, y, errors, fmt="none", ecolor=colour, alpha=0.5, linewidth=0.8)
    mark_trained(axes, trained_length)
    length_ticks(axes, sorted({row.length for row in rows if row.length is not None}), trained_length)
    axes.set_xlabel(LENGTH)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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


def sort_legend_by_last_value(axes: Any, beside: Any, rows: Sequence[Row]) -> None:
    """Place the legend of the lines of ``axes`` beside other axes, sorted by their values at the longest length."""
    longest = max(row.length for row in rows if row.length is not None)
    last = {row.scheme: row.value for row in rows if row.length == longest}
    handles, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(handles, labels, strict=True), key=lambda entry: -last.get(entry[1], 0.0))
    beside.legend(*zip(*pairs, strict=True), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def passkey_plot(rows: Sequence[Row], trained_length: int, path: Path, protocol: str) -> None:
    """Plot passkey retrieval accuracy, schemes as rows and lengths as columns; arguments as of `loss_plot`."""
    chosen = passkeys(rows)
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
    axes.set_xlabel(LENGTH)
    canvas.suptitle(f"Passkey retrieval over all depths, {protocol}", fontsize=11)
    canvas.colorbar(image, ax=axes, label="accuracy (%)", ticks=[0, 25, 50, 75, 100])
    save_figure(canvas, path)
