"""Write docs/findings.md: published findings as they come out here, with the command that makes each number again.

    hf-posenc reproduce --all --out results/findings
    python docs/make_findings.py results/findings

Every ``finding.json`` below the folders replaces the entry of that finding in docs/findings.json, from which the page
is written; without a folder, the page is written from those entries alone. Results of the quick budget are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes, write_json
from hf_posenc.insight.findings import all_findings
from hf_posenc.insight.findings.claims import signed

FOLDER = Path(__file__).parent
PAGE, SNAPSHOT = FOLDER / "findings.md", FOLDER / "findings.json"
KEPT = ("verdict", "claims", "needs", "seeds", "model", "cpu_seconds", "command", "versions")
HEAD = """# Published findings

What papers have found about positional encodings, run again on the models that ship with this package. One command
runs one finding, and needs no network:

```console
$ hf-posenc reproduce zero_shot_order
```

A finding is a list of claims: one variant is better than another at a point, by a margin, or as good within one. Each
is decided by the difference of both *on the same documents*, with standard errors over clusters of documents and,
apart from them, over seeds; p-values are corrected for all claims of the finding
([Holm](https://www.jstor.org/stable/4615733)). All claims hold surely: *reproduced*. One is surely reversed: *not
reproduced*. Otherwise, and where the model cannot do what the finding needs: *not decidable at this size*. What the
models here cannot show is said with each finding, and nothing is tuned towards a verdict. A result with one seed is
about that one model.

`--list` names all findings, `--all` runs them, `--quick` takes a smaller budget and says so in every output,
`--out` names the folder: `finding.json`, the raw cells (`cells/`, one file each), and the picture. The same command
goes on where it was interrupted, and costs nothing when all cells are there. `--model` and `--text` run a finding on
yours. Intervals are narrower with more `--seeds`, which are added to the stored ones, or more `--samples`. Budgets
were raised after a first look that decided nothing: `zero_shot_order` and `pose` from 32 documents to 96, and the
trainings of `randomized_positions`, `nope_length`, `content_positions`, `relative_bias_order` and
`alibi_extrapolation`, whose models had not learned what they were asked or differed between seeds more than between
schemes, to up to eight times the steps and four times the length. `attention_fading` was first asked for a digit among
noise, which was too easy to show anything, and got another task and five more seeds. In Python:

```python
from hf_posenc.insight.findings import all_findings

print([finding.name for finding in all_findings().values()])
```

[`reproduce`](#hf_posenc.reproduce) runs one, [](#hf_posenc.insight.findings.reproduction.verdict_of) derives a verdict
from stored cells alone, and a [`Finding`](#hf_posenc.insight.findings.finding.Finding) of your own is run alike.

Schemes on a trained model are refitted per length (factor = length / trained length), as most papers have them, unless
a claim says otherwise; tables elsewhere on this site have one factor for all lengths. Costs are CPU seconds of one
thread. The numbers are of {versions}.
This page is written by `python docs/make_findings.py`.

| finding | source | verdict | cost | command |
|---|---|---|---:|---|
"""


def main() -> None:
    """Update the entries from the folders that are given, and write the page."""
    entries = json.loads(SNAPSHOT.read_text(encoding="utf-8")) if SNAPSHOT.exists() else {}
    for folder in map(Path, sys.argv[1:]):
        for file in sorted(folder.rglob("finding.json")):
            entries |= entry_of(json.loads(file.read_text(encoding="utf-8")))
    entries = {name: entries[name] for name in all_findings() if name in entries}
    write_json(SNAPSHOT, entries)
    write_bytes(PAGE, page(entries).encode())


def entry_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs of one result, by name.

    Raises:
        SystemExit: it is of the quick budget.
    """
    if result["budget"] != "full":
        raise SystemExit(f"{result['name']} was run with --quick. Run it with the full budget.")
    return {result["name"]: {name: result[name] for name in KEPT if name in result} | {"versions": versions(result)}}


def versions(result: Mapping[str, Any]) -> str:
    """The versions that numbers were made with, in words."""
    given = result["settings"]["versions"]
    return f"Python {given['python']}, torch {given['torch']} and transformers {given['transformers']}"


def page(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in Markdown."""
    findings = all_findings()
    text = HEAD.format(versions="; ".join(dict.fromkeys(entry["versions"] for entry in entries.values())))
    for name, finding in findings.items():
        entry = entries.get(name)
        found = ("not run yet", "") if entry is None else (entry["verdict"], f"{entry['cpu_seconds']:.0f} s")
        title = name if entry is None else f"[{name}](#{name})"
        text += f"| {title} | {finding.source} | {found[0]} | {found[1]} | `hf-posenc reproduce {name}` |\n"
    return text + "".join(section(name, entries[name]) for name in findings if name in entries)


def section(name: str, entry: Mapping[str, Any]) -> str:
    """One finding: claim, what would count against it, the intervals, and what the models here cannot show."""
    finding = all_findings()[name]
    seeds = len(entry["seeds"])
    on = f"On `{entry['model']}`" if entry["model"] else "Models are trained from random weights"
    lines = [
        f"\n## {name}\n",
        f"**{finding.claim}** {finding.source}.\n",
        f"*Against it:* {finding.against}\n",
        f"`{entry['command']}`: **{entry['verdict']}**. {on}, {seeds} seed{'s' * (seeds > 1)}.\n",
        "| claim | gain | 95 % interval | documents | |",
        "|---|---:|---|---:|---|",
        *(row({**one, "says": f"needed: {one['says']}"}) for one in entry["needs"]),
        *(row(one) for one in entry["claims"]),
        f"\n{finding.limits}\n" if finding.limits else "",
    ]
    return "\n".join(lines)


def row(claim: Mapping[str, Any]) -> str:
    """A claim with its gain, its interval and what follows."""
    interval = " … ".join(signed(claim[bound]) for bound in ("low", "high") if claim[bound] is not None)
    cells = claim["says"], signed(claim["gain"]), interval, claim["documents"], claim["outcome"]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
