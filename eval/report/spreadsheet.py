"""Foreign text in CSV files, which spreadsheets open."""

from __future__ import annotations

FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "＝",
    "＋",
    "－",
    "＠",
)  # a spreadsheet runs cells that begin with these


def escape_formula(text: str) -> str:
    """Escape a name so that no spreadsheet takes it for a formula, on one line."""
    text = f"'{text}" if text.startswith(FORMULA) else text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
