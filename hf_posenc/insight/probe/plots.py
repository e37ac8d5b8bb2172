"""Two plots of a probe: attention weight by distance, and maps of layer × head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_posenc.core.plotting import MAGNITUDES, SIGNED, WIDEST, panels, save_figure
from hf_posenc.insight.probe.attention_profile import binned, edges
from hf_posenc.insight.probe.run import Probe
from hf_posenc.insight.probe.variant import MOST, Variant

SCALE_ENDS = (100, 150, 150)  # percent; orthogonal outputs of equal norm differ by 141 %
TITLES = (
    "most weight at one\ndistance (named over 50 %)", "positions shuffled\nfor one layer",
    "positions shuffled\nfor the whole model",
)  # fmt: skip


def heat_map(axes: Any, values: Tensor, title: str, low: float, high: float, colours: str = MAGNITUDES) -> Any:
    """Draw ``values [row, column]`` as coloured cells under a title."""
    axes.set_title(title, loc="left", fontsize=9)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return axes.imshow(values.tolist(), cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="none")


def colour_bar_below(canvas: Any, image: Any, axes: list[Any], label: str) -> None:
    """Draw a colour bar below the panels that share its scale."""
    canvas.colorbar(image, ax=axes, label=label, location="bottom", pad=0.03, fraction=0.06, aspect=30)


def distance_plot(probe: Probe, path: Path) -> None:
    """Plot attention weight by distance, one row per head: unpatched, patched, and the change."""
    maps = [binned_weights(variant) for variant in probe.variants]
    comparable = probe.moved is not None
    columns = len(maps) + comparable
    canvas, grid = panels(WIDEST / 3 * columns, min(9.0, 1.4 + 0.16 * len(maps[0])), 1, columns, shared=False)
    highest = max(float(weights.max()) for weights in maps)
    for axes, variant, weights in zip(grid, probe.variants, maps, strict=False):
        image = heat_map(axes, weights, f"{variant.label}, {variant.length:,} tokens", 0, highest)
        ticks_of_map(axes, variant)
    grid[0].set_ylabel("layer (one row per head)")
    colour_bar_below(canvas, image, grid[: len(maps)], "attention weight (% of a row)")
    if comparable:
        change = maps[1] - maps[0]
        bound = float(change.abs().max()) or 1.0
        image = heat_map(grid[-1], change, "change", -bound, bound, SIGNED)
        ticks_of_map(grid[-1], probe.variants[1])
        colour_bar_below(canvas, image, grid[-1:], "change (percentage points)")
    save_figure(canvas, path)


def binned_weights(variant: Variant) -> Tensor:
    """Return attention weights in bins of distance, in percent of a row, ``[layers · heads, bin]``."""
    return 100 * torch.cat([binned(profile, edges(variant.length)) for profile in variant.profiles])


def ticks_of_map(axes: Any, variant: Variant) -> None:
    """Label the distance bins on the x axis and the layers on the y axis."""
    starts = edges(variant.length)
    ends = [start - 1 for start in (*starts[1:], variant.length)]
    names = [f"{first}–{last}" if last > first else str(first) for first, last in zip(starts, ends, strict=True)]
    axes.set_xticks(range(len(starts)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    heads = len(variant.profiles[0].mass)
    every = max(1, len(variant.profiles) // 16)
    layers = range(0, len(variant.profiles), every)
    axes.set_yticks([layer * heads + (heads - 1) / 2 for layer in layers], [str(layer) for layer in layers])
    for layer in range(1, len(variant.profiles)):
        axes.axhline(layer * heads - 0.5, color="white", linewidth=0.8)
    axes.set_xlabel("distance (tokens)")


def heads_plot(probe: Probe, path: Path) -> None:
    """Plot three maps of layer × head per variant: largest weight at one distance, and two effects of the shuffle."""
    layers, heads = probe.variants[0].direct.shape
    width, height = max(2.5, min(4.5, 0.9 + 0.22 * heads)), max(1.9, min(6.0, 1.1 + 0.2 * layers))
    rows = len(probe.variants)
    canvas, grid = panels(min(WIDEST, 3 * width), 0.7 + rows * height, rows, 3, shared=False)
    for number, variant in enumerate(probe.variants):
        row = grid[3 * number : 3 * number + 3]
        strongest = torch.stack([profile.strongest()[1] for profile in variant.profiles])
        maps = (strongest, variant.direct, variant.total)
        for axes, values, title, top in zip(row, maps, TITLES, SCALE_ENDS, strict=True):
            heat_map(axes, 100 * values, "" if number else title, 0, top)
            axes.set_xlabel("head")
            axes.set_xticks(range(0, heads, max(1, -(-heads // 8))))  # at most eight labels
            axes.set_yticks(range(0, layers, max(1, -(-layers // 8))))
        row[0].set_ylabel(f"{variant.label}\nlayer")
        annotate_distances(row[0], variant)
    colour_bar_below(canvas, grid[0].images[0], grid[::3], "attention weight (% of a row)")
    shuffled = [axes for n, axes in enumerate(grid) if n % 3]
    colour_bar_below(canvas, shuffled[0].images[0], shuffled, "change of the output (%)")
    save_figure(canvas, path)


def annotate_distances(axes: Any, variant: Variant) -> None:
    """Write the distance on the cell of every head that attends mostly to one distance."""
    for head in variant.heads:
        if head.share > MOST:
            colour = "black" if head.share > 0.55 else "white"
            axes.text(head.head, head.layer, str(head.strongest), ha="center", va="center", fontsize=8, color=colour)


PLOTS: dict[str, Callable[[Probe, Path], None]] = {"distance": distance_plot, "heads": heads_plot}


def write_plots(probe: Probe, folder: Path) -> list[Path]:
    """Write every plot as a PNG file, and return the files."""
    for name, plot in PLOTS.items():
        plot(probe, folder / f"{name}.png")
    return [folder / f"{name}.png" for name in PLOTS]
