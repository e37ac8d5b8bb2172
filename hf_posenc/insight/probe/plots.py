"""Four pictures of a probe: weight against distance, what single heads do, loss, and the first token's share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.files.staged import staged
from hf_posenc.core.plotting.figures import COLOURS, MARKERS, figure, length_ticks, save_figure
from hf_posenc.eval.report.plots import mark_trained
from hf_posenc.insight.probe.attention_profile import binned, edges
from hf_posenc.insight.probe.heads import MOST
from hf_posenc.insight.probe.run import Probe
from hf_posenc.insight.probe.variant import Variant

HUES = (COLOURS[0], COLOURS[4])
SIDES = ((-0.12, "o"), (0.12, "s"))
SHARES, CHANGES = 100, 150  # percent where a scale ends; outputs of one length with nothing in common differ by 141
TITLES = (
    "most weight at one\ndistance (named over 50 %)", "weight on the\nfirst token",
    "positions shuffled\nfor one layer", "positions shuffled\nfor the whole model",
)  # fmt: skip


def panels(down: int, across: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure with a grid of axes, ``[down, across]``; sizes are of one of them."""
    canvas, axes = figure(across * width, down * height)
    axes.remove()
    return canvas, canvas.subplots(down, across, squeeze=False)


def distance_picture(probe: Probe, path: Path) -> None:
    """Weight by distance, a row a head: before, after, and what moved."""
    maps = [map_of(side) for side in probe.sides]
    comparable = probe.moved is not None
    canvas, grid = panels(1, len(maps) + comparable, 3.9, min(9.0, 1.4 + 0.16 * len(maps[0])))
    most = max(float(one.max()) for one in maps)
    for axes, side, shares in zip(grid[0], probe.sides, maps, strict=False):
        image = axes.imshow(shares.tolist(), cmap="cividis", vmin=0, vmax=most, aspect="auto", interpolation="none")
        axes.set_title(f"{side.label}, {side.length:,} tokens", loc="left", fontsize=10)
        ticks_of_map(axes, side)
    grid[0][0].set_ylabel("layer (a row a head)")
    canvas.colorbar(image, ax=list(grid[0][: len(maps)]), label="weight (% of a row)", pad=0.02)
    if comparable:
        change = maps[1] - maps[0]
        bound = float(change.abs().max()) or 1.0
        last = grid[0][-1]
        image = last.imshow(change.tolist(), cmap="PuOr", vmin=-bound, vmax=bound, aspect="auto", interpolation="none")
        last.set_title("change", loc="left", fontsize=10)
        ticks_of_map(last, probe.sides[1])
        canvas.colorbar(image, ax=last, label="change (percentage points)", pad=0.04)
    save_figure(canvas, path)


def map_of(side: Variant) -> Tensor:
    """Percent of a row's weight in bins of distance, ``[layers · heads, bin]``."""
    return 100 * torch.cat([binned(profile, edges(side.length)) for profile in side.profiles])


def ticks_of_map(axes: Any, side: Variant) -> None:
    """Bins across, layers down."""
    starts = edges(side.length)
    names = [range_name(a, b - 1) for a, b in zip(starts, [*starts[1:], side.length], strict=True)]
    axes.set_xticks(range(len(starts)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    heads = len(side.profiles[0].mass)
    every = max(1, len(side.profiles) // 16)
    layers = range(0, len(side.profiles), every)
    axes.set_yticks([layer * heads + (heads - 1) / 2 for layer in layers], [str(layer) for layer in layers])
    for layer in range(1, len(side.profiles)):
        axes.axhline(layer * heads - 0.5, color="white", linewidth=0.8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("distance (tokens)")


def range_name(first: int, last: int) -> str:
    """``8–15``."""
    return str(first) if last <= first else f"{first}–{last}"


def heads_picture(probe: Probe, path: Path) -> None:
    """Four maps of layer × head, a row of them for each side: two of weight, two of what shuffled positions change."""
    layers, heads = probe.sides[0].direct.shape
    canvas, grid = panels(
        len(probe.sides), 4, max(2.5, min(4.5, 0.9 + 0.22 * heads)), max(1.9, min(6.0, 1.1 + 0.2 * layers))
    )
    for row, side in zip(grid, probe.sides, strict=True):
        shown = (
            torch.stack([profile.strongest()[1] for profile in side.profiles]),
            torch.stack([profile.sink for profile in side.profiles]), side.direct, side.total,
        )  # fmt: skip
        for number, (axes, values) in enumerate(zip(row, shown, strict=True)):
            top = SHARES if number < 2 else CHANGES
            axes.imshow((100 * values).tolist(), cmap="cividis", vmin=0, vmax=top, aspect="auto", interpolation="none")
            axes.set_title(TITLES[number] if side is probe.sides[0] else "", loc="left", fontsize=9)
            axes.set_xlabel("head")
            whole_ticks(axes, heads, layers)
            axes.tick_params(length=0, labelsize=8)
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(f"{side.label}\nlayer")
        name_fixed(row[0], side)
    for columns, label in ((slice(0, 2), "weight (% of a row)"), (slice(2, 4), "change of the output (%)")):
        some = grid[:, columns]
        canvas.colorbar(some[0, 0].images[0], ax=list(some.flat), label=label, pad=0.02)
    save_figure(canvas, path)


def whole_ticks(axes: Any, across: int, down: int) -> None:
    """At most some eight numbers along each side."""
    axes.set_xticks(range(0, across, max(1, -(-across // 8))))
    axes.set_yticks(range(0, down, max(1, -(-down // 8))))


def name_fixed(axes: Any, side: Variant) -> None:
    """Write the distance of heads that look mostly at one."""
    for head in side.heads:
        if head.share > MOST:
            colour = "black" if head.share > 0.55 else "white"
            axes.text(head.head, head.layer, str(head.strongest), ha="center", va="center", fontsize=7, color=colour)


def loss_picture(probe: Probe, path: Path) -> None:
    """Loss of the same last tokens against length, and of all tokens against their place in the longest text."""
    canvas, grid = panels(1, 2, 4.6, 3.6)
    (left, right), known = grid[0], [side for side in probe.sides if side.reading is not None]
    for number, side in enumerate(known):
        reading, style = side.reading, {"color": HUES[number], "marker": MARKERS[number]}
        assert reading is not None
        errors = [reading.rise(reading.best, i)[1] for i in range(len(reading.lengths))]
        label = f"{side.label}: effective length {reading.effective:,} (ringed)"
        left.plot(reading.lengths, reading.means, linewidth=1.8, markersize=5, zorder=3, label=label, **style)
        left.errorbar(reading.lengths, reading.means, errors, fmt="none", ecolor=HUES[number], alpha=0.6, linewidth=0.9)
        here = reading.lengths.index(reading.effective)
        left.plot(
            reading.effective, reading.means[here], "o", markersize=14, fillstyle="none", color=HUES[number], zorder=4
        )
        right.plot(reading.places, reading.by_place, linewidth=1.6, markersize=4, label=side.label, **style)
    lengths = sorted({length for side in known if side.reading for length in side.reading.lengths})
    length_ticks(left, lengths, probe.trained_length)
    left.set_title("The same last tokens", loc="left", fontsize=10)
    left.set_xlabel("length (tokens; multiples of the trained length)")
    left.set_ylabel("loss (nats/token)")
    right.set_title("All tokens of the longest text", loc="left", fontsize=10)
    right.set_xlabel("tokens read before")
    right.set_ylabel("loss (nats/token)")
    for axes in (left, right):
        mark_trained(axes, probe.trained_length)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save_figure(canvas, path)


def sink_picture(probe: Probe, path: Path) -> None:
    """Weight on the first tokens: a dot a head, a line through the means of the layers."""
    canvas, axes = figure(max(4.6, min(9.0, 2.5 + 0.3 * len(probe.sides[0].profiles))), 3.2)
    for number, side in enumerate(probe.sides):
        aside, marker = SIDES[number] if len(probe.sides) > 1 else (0.0, "o")
        layers = range(len(side.profiles))
        dots = [(layer + aside, 100 * value) for layer in layers for value in side.profiles[layer].sink.tolist()]
        axes.plot(*zip(*dots, strict=True), marker, color=HUES[number], alpha=0.4, markersize=4, markeredgewidth=0)
        axes.plot(
            [layer + aside for layer in layers], [100 * value for value in side.sinks],
            color=HUES[number], marker=marker, markersize=6, linewidth=1.6, label=f"{side.label} (mean of the heads)",
        )  # fmt: skip
    tokens = "token" if probe.sinks == 1 else f"{probe.sinks} tokens"
    axes.set_xticks(range(0, len(probe.sides[0].profiles), max(1, len(probe.sides[0].profiles) // 16)))
    axes.set_xlabel("layer")
    axes.set_ylabel(f"weight on the first {tokens} (%)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save_figure(canvas, path)


def write_plots(probe: Probe, folder: Path) -> list[Path]:
    """All pictures that have something to show, as PNG, or none of them.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    wanted: dict[str, Callable[[Probe, Path], None]] = {
        "distance": distance_picture, "heads": heads_picture, "sinks": sink_picture,
    }  # fmt: skip
    if any(side.reading is not None for side in probe.sides):
        wanted["loss"] = loss_picture
    with staged(folder) as beside:
        for name, draw in wanted.items():
            draw(probe, beside / f"{name}.png")
    return [folder / f"{name}.png" for name in wanted]
