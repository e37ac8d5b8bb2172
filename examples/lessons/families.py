"""Where position enters: with the words, in queries and keys, in the scores, or in the attention mask."""

from __future__ import annotations

from teaching import Result, Table, lesson
from tiny_models import named

from hf_posenc.insight.properties import targets
from hf_posenc.schemes.base import overrides
from hf_posenc.schemes.registry import list_schemes

HOOKS_OF = {
    "added to words": ("embed", "read_table"),
    "turns queries and keys": ("rotation", "row_rotation", "prepare"),
    "added to scores": ("bias",),
    "places tokens elsewhere": ("regions", "reposition"),
    "limits sight": ("visible",),
    "scales scores": ("query_scale", "row_scale", "logit_scale", "sink"),
    "added to outputs": ("values",),
}


@lesson("Where can position enter a transformer?")
def families() -> Result:
    """Every scheme's hooks, sorted by where they act."""
    found: dict[str, list[str]] = {family: [] for family in HOOKS_OF}
    nothing = []
    for record in list_schemes():
        parts = {part for target in targets(record.name) for part in target.layer().scheme.schemes}
        own = [part for part in parts if part.record.name == record.name]
        families = [family for family, hooks in HOOKS_OF.items() if any(overrides(p, h) for p in own for h in hooks)]
        for family in families:
            found[family].append(record.name)
        if not families:
            nothing.append(record.name)
    rows = tuple((family, len(names), ", ".join(names)) for family, names in found.items())
    most = max(rows, key=lambda row: row[1])
    shows = """A scheme can add a code to words before the first layer, rotate queries and keys, add a number to scores
        before softmax, count distances anew, or hide keys. Which it does is read off the scheme itself."""
    conclusion = (
        f"The largest family, “{most[0]}”, has {most[1]} schemes. None of these in a single layer: {named(nothing)}."
    )
    return shows, [Table(("position is", "schemes", "which"), rows)], conclusion


if __name__ == "__main__":
    families.main()
