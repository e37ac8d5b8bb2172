"""Results of the demo as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from hf_posenc.eval.report.report import heading, lookup
from hf_posenc.eval.results.rows import Row


def results_table(rows: Sequence[Row], trained_length: int, protocol: str) -> Table:
    """Build a table with schemes as rows and lengths as columns; each cell has loss and passkey retrieval accuracy.

    The title names the ``protocol``: which factor the schemes have.
    """
    value = lookup(rows)
    lengths = sorted({row.length for row in rows if row.length is not None})
    title = f"cross-entropy loss (nats/token) · passkey retrieval; {protocol}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("scheme")
    for length in lengths:
        table.add_column(heading(length, trained_length), justify="right")
    for scheme in dict.fromkeys(row.scheme for row in rows):
        cells = []
        for length in lengths:
            loss = value[scheme, length, "posenc_ppl", "nll"].value
            found = value[scheme, length, "posenc_passkey", "acc"].value
            cells.append(f"{loss:.2f} · {100 * found:3.0f} %")
        table.add_row(scheme, *cells)
    return table
