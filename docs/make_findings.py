"""Write docs/findings.md: published findings, and whether they are reproduced here.

    python examples/findings/zero_shot_order.py --out results/findings/zero_shot_order.json
    python docs/make_findings.py results/findings

Every JSON file below the folders replaces the entry of that finding in docs/findings.json, from which the page
is written; without a folder, the page is written from those entries alone. Results of the quick budget are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes, write_json

FOLDER = Path(__file__).parent
SCRIPTS = FOLDER.parent / "examples" / "findings"
PAGE, SNAPSHOT = FOLDER / "findings.md", FOLDER / "findings.json"
HEAD = """# Published findings

Findings of papers about positional encodings, run again on the models that ship with this package. Each finding is a
short script with its claims, source, settings and the limits of its model (`--quick`: a smaller budget):

```console
$ python examples/findings/zero_shot_order.py
```

A claim says that one variant is better than another in one setting. Their difference *on the same documents* decides,
with standard errors over documents and seeds; p-values are corrected for all claims of the finding
([Holm](https://www.jstor.org/stable/4615733)).

- *Reproduced*: all claims hold significantly.
- *Not reproduced*: one is reversed significantly.
- *Not decidable at this size*: otherwise, or if the model cannot do what the finding needs.

Budgets were raised if a first run decided nothing; nothing else was tuned. On a trained model, the factor follows the
length, as in most papers. `docs/findings.json` has every interval. Costs are CPU seconds of one
thread; {versions}.

| `python examples/findings/….py` | source | verdict | claims that hold | cost |
|---|---|---|---:|---:|
"""


def main() -> None:
    """Update the entries from the folders on the command line, and write the page."""
    entries = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    for folder in map(Path, sys.argv[1:]):
        for file in sorted(folder.rglob("*.json")):
            entry = json.loads(file.read_text(encoding="utf-8"))
            if entry["quick"]:
                raise SystemExit(f"{entry['name']} was run with --quick. Run it with the full budget.")
            entries[entry.pop("name")] = entry
    write_json(SNAPSHOT, dict(sorted(entries.items())))
    write_bytes(PAGE, page(entries).encode())


def page(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in Markdown."""
    text = HEAD.format(versions="; ".join(dict.fromkeys(entry["versions"] for entry in entries.values())))
    for name, entry in entries.items():
        holds = sum(claim["outcome"] == "holds" for claim in entry["claims"])
        cells = f"`{name}`", import_module(name).FINDING.source, entry["verdict"], f"{holds} of {len(entry['claims'])}"
        text += f"| {' | '.join(cells)} | {entry['cpu_seconds']:.0f} s |\n"
    return text


if __name__ == "__main__":
    sys.path[:0] = [str(SCRIPTS)]
    main()
