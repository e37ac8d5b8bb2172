"""Write the scheme table of `docs/schemes.md` from the registry: ``python docs/make_schemes.py`` rewrites it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_posenc.cli.commands.info import paper_address
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import list_schemes

BEGIN = "<!-- schemes: written by python docs/make_schemes.py -->"
END = "<!-- end of schemes -->"
PAGE = Path(__file__).parent / "schemes.md"
HEAD = "| scheme | also called | what it is | defined for | use | paper |\n|---|---|---|---|---|---|"


def scheme_table(records: Sequence[SchemeRecord]) -> str:
    """Format scheme records as a Markdown table."""
    return "\n".join([HEAD, *map(row, sorted(records, key=lambda record: record.recipe))])


def row(record: SchemeRecord) -> str:
    """Format one record as a line of the table."""
    also = ", ".join(f"`{alias}`" for alias in record.aliases)
    learned = {True: ", learned", False: "", None: ", learned by its options"}
    paper = f"[{paper_name(record.paper)}]({paper_address(record.paper)})" if record.paper else ""
    cells = (f"`{record.name}`", also, record.summary.replace("``", "`"), record.defined_for,
             record.use + learned[record.learned], paper)  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def paper_name(paper: str) -> str:
    """Return an arXiv number unchanged, and the host name of a URL."""
    return paper.split("/")[2].removeprefix("www.") if paper.startswith("http") else paper


def with_table(text: str, table: str) -> str:
    """Replace the table between the two markers of a page."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    built_in = [record for record in list_schemes() if record.shipped]
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), scheme_table(built_in)), encoding="utf-8")
