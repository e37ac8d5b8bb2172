"""``hf-posenc info``: formula, paper, properties and options of one scheme."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option

from hf_posenc.cli import output
from hf_posenc.cli.arguments import AsJson
from hf_posenc.cli.bad_argument import BadArgument
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.registry import scheme_record


def info(
    name: Annotated[str, Argument(help="Name or alias of a scheme.")],
    latex: Annotated[bool, Option("--latex", help="Write the formula alone, as LaTeX (amsmath).")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one scheme: formula, paper, options."""
    if latex and as_json:
        raise BadArgument("--latex writes the formula alone, and --json the whole record. Leave one out.")
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
