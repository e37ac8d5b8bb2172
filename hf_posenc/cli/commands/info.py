"""``hf-posenc info``: formula, papers and options of one scheme."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.citations import cite
from hf_posenc.schemes.registry import scheme_record


def info(
    name: Annotated[str, Argument(help="Name or alias of a scheme.")],
    latex: Annotated[bool, Option("--latex", help="Write the formula alone, as LaTeX (amsmath).")] = False,
    bibtex: Annotated[bool, Option("--bibtex", help="Write BibTeX of its papers alone; also of yarn+logn.")] = False,
    properties: Annotated[
        bool, Option("--properties", help="Measure its properties instead: unique, relative, bounded …")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one scheme: formula, paper, options."""
    if latex + bibtex + (as_json or properties) > 1:
        raise BadArgument("--latex and --bibtex each write something else. Choose one.")
    if bibtex:
        output.show_text(cite(name))
        return
    if properties:
        show_properties(name, as_json)
        return
    record = scheme_record(name)
    if latex:
        output.show_text(record.latex)
        return
    if as_json:
        output.show_json(asdict(record))
        return
    about = dict.fromkeys((record.text, record.about, facts(record)))  # a scheme of one's own has one text for both
    output.show_text("\n\n".join(about) + "\n")
    if record.options:
        rows = [(option, kind, default or "required") for option, (kind, default) in record.options.items()]
        output.show_table(("option", "value", "default"), rows)


def show_properties(name: str, as_json: bool) -> None:
    """Show each property of a scheme with the number that decides it."""
    from hf_posenc.insight.properties import PROPERTIES, measure
    from hf_posenc.schemes.entry import entries_of

    specs = [(entry.scheme or "none", entry.options) for entry in entries_of([name])]
    table = measure(specs)  # of a scheme whose layers differ, a row for each kind of layer
    if as_json:
        output.show_json({label: {key: cell.to_dict() for key, cell in row.items()} for label, row in table.items()})
        return
    for label, row in table.items():
        lines = [(PROPERTIES[key].question, cell, cell.explanation) for key, cell in row.items()]
        output.show_table(("property", label, "the number"), lines)


def facts(record: SchemeRecord) -> str:
    """Format a record as lines of key and value."""
    lines = {
        "name": ", ".join((record.name, *record.aliases)),
        "defined for": record.defined_for,
        "trained": LEARNED[record.learned],
        "use": USES[record.use],
        "cache": CACHES.get(record.cache, record.cache),
        "paper": paper_address(record.paper),
    }
    return "\n".join(f"{key:<13}{value}" for key, value in lines.items() if value)


LEARNED = {
    True: "has parameters to train",
    False: "has no parameters",
    None: "has parameters or not, by its options",
}

USES = {
    "zero-shot": "works on a RoPE model without training",
    "training": "the model must be trained with it",
    "recipe": "a training recipe on top of another scheme",
}

CACHES = {
    "final": "the KV cache holds keys as attention uses them",
    "copies": "the KV cache holds one copy of the keys per region",
    "raw": "the KV cache holds unrotated keys, rotated at every step",
}


def paper_address(paper: str) -> str:
    """Turn an arXiv number into a URL; return a URL unchanged."""
    return paper if not paper or paper.startswith("http") else f"https://arxiv.org/abs/{paper}"
