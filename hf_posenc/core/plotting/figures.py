"""Two pictures: loss against length, and where the pass key is found.

Colours are Okabe and Ito's (Color Universal Design, 2008), which colour-blind readers can tell apart; every line has a
marker of its own as well.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.eval.errors import MissingExtra
from hf_posenc.eval.report.results import Row

COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#8C8C8C", "#7A5C00")
MARKERS = "osD^vPX*h"
DOTS_PER_INCH = 150


def figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, without the state of pyplot, so that no window and no user setting is touched.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    return canvas, canvas.subplots()


def require_matplotlib() -> None:
    """Say which extra is missing, rather than which module.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra("Pictures need matplotlib, which is not installed. pip install 'hf-posenc[plot]'") from error


def save_figure(canvas: Any, path: Path) -> None:
    """Write a figure, whole or not at all; the ending says which format."""
    drawn = io.BytesIO()
    canvas.savefig(drawn, format=path.suffix.lstrip(".") or "png")
    write_bytes(path, drawn.getvalue())


def loss_picture(rows: Sequence[Row], trained_length: int, path: Path) -> None:
    """Loss of the same last tokens against length: one line a scheme, standard errors as thin bars."""
    chosen = [
        row for row in rows if row.metric == "nll" and row.depth is None and row.task in ("posenc_ppl", "posenc_mlm")
    ]
    schemes = list(dict.fromkeys(row.scheme for row in chosen))
    lengths = sorted({row.length for row in chosen if row.length is not None})
    canvas, axes = figure(8.0, 4.8)
    for number, scheme in enumerate(schemes):
        line = sorted((row for row in chosen if row.scheme == scheme), key=lambda row: row.length or 0)
        aside = 2 ** (0.02 * (number - (len(schemes) - 1) / 2))  # lines that coincide stay visible
        x, y = [aside * (row.length or 0) for row in line], [row.value for row in line]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(x, y, label=scheme, color=colour, marker=marker, markersize=6, linewidth=1.8, zorder=3)
        axes.errorbar(x, y, [row.stderr or 0.0 for row in line], fmt="none", ecolor=colour, alpha=0.5, linewidth=0.8)
    mark_trained(axes, trained_length)
    length_ticks(axes, lengths, trained_length)
    axes.set_xlabel("length (tokens, and multiples of the trained length)")
    axes.set_ylabel("loss (nats a token)")
    axes.set_title("Loss of the same last tokens, after ever more text", loc="left", fontsize=11)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    in_order_of_last_value(axes, chosen, lengths[-1])
    save_figure(canvas, path)


def length_ticks(axes: Any, lengths: Sequence[int], trained_length: int) -> None:
    """A logarithmic axis of lengths, each with its multiple of the trained length."""
    axes.set_xscale("log", base=2)
    names = length_names(lengths)
    axes.set_xticks(lengths, [f"{name}\n{n / trained_length:g}×" for name, n in zip(names, lengths, strict=True)])
    axes.minorticks_off()


def length_names(lengths: Sequence[int]) -> list[str]:
    """``1,024``, or ``1k`` where many stand side by side."""
    short = len(lengths) > 5
    return [f"{length // 1024}k" if short and length % 1024 == 0 else f"{length:,}" for length in lengths]


def mark_trained(axes: Any, trained_length: int, colour: str = "#555555", above: bool = False) -> None:
    """A dashed line where training ended, its name inside the axes or above them."""
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


def in_order_of_last_value(axes: Any, rows: Sequence[Row], longest: int) -> None:
    """A legend beside the axes whose entries stand in the order of the lines' right ends."""
    last = {row.scheme: row.value for row in rows if row.length == longest}
    handles, labels = axes.get_legend_handles_labels()
    pairs = sorted(zip(handles, labels, strict=True), key=lambda pair: -last.get(pair[1], 0.0))
    axes.legend(*zip(*pairs, strict=True), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def passkey_picture(rows: Sequence[Row], trained_length: int, path: Path) -> None:
    """Share of pass keys found: schemes down, lengths across."""
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
    axes.set_title("Pass keys found, over all depths", loc="left", fontsize=11)
    canvas.colorbar(image, ax=axes, label="found (%)", ticks=[0, 25, 50, 75, 100])
    save_figure(canvas, path)
