"""What ``hf-posenc bench`` prints and writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Context

from hf_posenc.cli import output
from hf_posenc.cli.arguments import command_line
from hf_posenc.cli.commands.env import environment

if TYPE_CHECKING:
    from hf_posenc.insight.bench import BenchCell
    from hf_posenc.insight.bench.devices import Device

RESULTS, PLOTS = "bench.json", ("bench.svg", "bench.png")


def about_run(
    context: Context, device: Device, model: str, dtype: str, threads: int, *, rows: str, compiled: bool
) -> dict[str, Any]:
    """Collect what the numbers depend on: command, model, dtype, device, threads, rows, environment."""
    return {
        "command": command_line(context), "model": model, "dtype": dtype.removeprefix("torch."),
        "device": device.name, "threads": threads,
        "rows": rows, "compiled": compiled, **environment(),
    }  # fmt: skip


def about_text(about: dict[str, Any]) -> str:
    """In a line, what the numbers depend on."""
    parts = ["{model}, {dtype}, {threads} thread(s) of {device}".format(**about)]
    if about["rows"] != "full":
        parts.append(f"{about['rows']} rows")
    if about["compiled"]:
        parts.append("compiled")
    return ", ".join(parts)


@dataclass(frozen=True)
class BenchResults:
    """A benchmark that grows.

    Attributes:
        cells: finished ones.
        about: see `about_run`.
        device: type of torch's device.
    """

    cells: list[BenchCell]
    about: dict[str, Any]
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: settings, and every round of every cell."""
        return {"about": self.about, "cells": [cell.to_dict() for cell in self.cells]}

    def write(self, folder: Path) -> None:
        """Write the numbers and the plots; each file atomically."""
        from hf_posenc.core.files.atomic import write_json
        from hf_posenc.insight.bench.results import write_plot

        write_json(folder / RESULTS, self.to_dict())
        for name in PLOTS:
            write_plot(self.cells, folder / name)

    def show(self, out: Path | None, as_json: bool) -> None:
        """Show one table per case, the reasons of missing values, and the files written."""
        from hf_posenc.insight.bench.results import TITLES, busy_remark, remarks, table

        if as_json:
            output.show_json(self.to_dict())
            return
        for case in dict.fromkeys(cell.case for cell in self.cells):
            output.show_table(*table(self.cells, case), title=TITLES[case])
        for remark in (*remarks(self.cells), *busy_remark(self.cells, self.about["threads"], self.device)):
            output.show_text(remark)
        if self.cells:
            output.show_text(about_text(self.about))
        if out is not None and self.cells:
            output.show_text(f"Written to {out}: {', '.join((RESULTS, *PLOTS))}")
