"""Draw the laboratory models of nine schemes, for docs/starters.md:

    python docs/make_laboratory.py runs/gpu/eval

The folder has a file for each scheme, which the commands on that page write; the learned table ends at 256 tokens. The
last measurements are kept in docs/laboratory.json; without a folder, the picture is drawn from this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.plotting import MARKERS, WIDEST, figure, length_ticks, plain, save_figure
from hf_posenc.insight.plots.marks import style

DOCS = Path(__file__).parent
FIGURES, PICTURE = DOCS / "laboratory.json", DOCS / "laboratory.png"
SCHEMES = {
    "rope": "RoPE", "irope": "iRoPE", "sinusoidal": "sinusoidal", "learned": "learned", "t5": "T5", "alibi": "ALiBi",
    "fox": "FoX", "fire": "FIRE", "none": "no positions",
}  # fmt: skip
TASKS = (
    "posenc_passkey", "posenc_niah_single", "posenc_copy", "posenc_niah_multivalue", "posenc_qa",
    "posenc_niah_multikey", "posenc_induction", "posenc_vt", "posenc_niah_multiquery", "posenc_fwe",
)  # fmt: skip
LOSS, SHARE = ("posenc_ppl", "nll"), "acc"
DRAWN = {
    "posenc_passkey": "passkey", "posenc_niah_multikey": "one code among four",
    "posenc_niah_multivalue": "four codes of one thing", "posenc_vt": "chains of five names",
    "posenc_qa": "question about one document", "posenc_copy": "string copied", "posenc_induction": "pair seen once",
}  # fmt: skip
TRAINED = 256
Figures = dict[str, dict[str, dict[str, list[float]]]]
"""Value and standard error, by scheme, task and length (as text)."""


def main() -> None:
    """Store the figures of a folder if one is named, and draw the picture."""
    if len(sys.argv) > 1:
        write_json(FIGURES, {name: figures_of(Path(sys.argv[1]) / f"{name}.json") for name in SCHEMES})
    draw(json.loads(FIGURES.read_text(encoding="utf-8")))


def figures_of(file: Path) -> dict[str, dict[str, list[float]]]:
    """Figures of one evaluation, over all depths."""
    by_task: dict[str, dict[str, list[float]]] = {}
    wanted = {LOSS, *((task, SHARE) for task in TASKS)}
    for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        if row["depth"] is None and (row["task"], row["metric"]) in wanted:
            by_task.setdefault(row["task"], {})[str(row["length"])] = [row["value"], row["stderr"]]
    return by_task


def draw(figures: Figures) -> None:
    """Plot loss and shares against length, one panel each, with 95 % intervals."""
    canvas, axes = figure(WIDEST, 6.2)
    axes.remove()
    grid = list(canvas.subplots(2, 4, squeeze=False).flat)
    panels: list[tuple[str, str]] = [(LOSS[0], "loss, nats/token (lower is better)"), *DRAWN.items()]
    reaching = [name for name in SCHEMES if len(figures[name][LOSS[0]]) > 1]
    for panel, (task, title) in zip(grid, panels, strict=True):
        for number, name in enumerate(reaching):
            lengths = [int(length) for length in figures[name][task]]
            values, errors = zip(*figures[name][task].values(), strict=True)
            panel.errorbar(
                lengths, values, yerr=[1.96 * error for error in errors], label=SCHEMES[name], capsize=2, linewidth=1.5,
                marker=MARKERS[1:][number % (len(MARKERS) - 1)], markersize=4, **style(number),
            )  # fmt: skip
        panel.set_title(title, loc="left", fontsize=9)
        length_ticks(panel, lengths, TRAINED)
        plain(panel)
        panel.set_ylim(*((1.9, 5.5) if task == LOSS[0] else (-0.04, 1.04)))
    handles, names = grid[0].get_legend_handles_labels()
    canvas.legend(handles, names, loc="outside lower left", ncols=4, frameon=False, handlelength=2.4)
    save_figure(canvas, PICTURE)


if __name__ == "__main__":
    main()
