"""Write one page per scheme from its record, and an index, before Sphinx reads its sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docstrings import code, page, prose, table
from make_schemes import paper_name
from scheme_evidence import evidence, properties
from scheme_gallery import gallery
from scheme_links import links

from hf_posenc.cli.commands.info import CACHES, USES, paper_address
from hf_posenc.core.record import SchemeRecord
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.citations import cite
from hf_posenc.schemes.registry import list_schemes, scheme_class

FOLDER = "schemes"
HOOKS = {
    "embed": "adds a code to the embeddings",
    "read_table": "indexes the model's position table in its own way",
    "reposition": "moves tokens to other positions",
    "rotation": "rotates queries and keys",
    "row_rotation": "rotates them by the length of the text so far",
    "retune": "changes the rotation of the model or of the composition",
    "prepare": "changes queries and keys before rotation",
    "regions": "gives sets of pairs positions of their own",
    "bias": "adds a bias to the scores",
    "values": "adds to the attention output",
    "query_scale": "scales queries by their position",
    "row_scale": "scales each query's logits",
    "logit_scale": "scales all logits",
    "sink": "adds a key without a value",
    "visible": "hides some keys",
    "extra_key_channels": "caches further channels with every key",
}
USE = """```python
from hf_posenc import describe, load_starter, patch_model

model, tokenizer = load_starter("{model}")  # or any model of yours
patch_model(model, "{name}", factor=4)
print(describe(model))
```

```console
$ hf-posenc check --model starter:{model} --scheme {name} --factor 4
```
"""


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / FOLDER))
    return {"version": "1", "parallel_read_safe": True}


def built_in() -> list[SchemeRecord]:
    """The schemes of this package, recipes last."""
    records = [record for record in list_schemes() if record.shipped]
    return sorted(records, key=lambda record: (record.recipe, record.name))


def write_pages(folder: Path) -> None:
    """Write all pages and the index; unchanged files keep their date, so that Sphinx does not build them again."""
    pages = {record.name: scheme_page(record, folder) for record in built_in()}
    folder.mkdir(exist_ok=True)
    others = {"index": index(built_in()), "gallery": gallery(built_in())}
    for name, text in {**pages, **others}.items():
        file = folder / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.glob("*.md"):
        if file.stem not in {*pages, *others}:
            file.unlink()


def scheme_page(record: SchemeRecord, folder: Path) -> str:
    """The page of one scheme."""
    module, _, name = record.target.partition(":")
    source = module.removeprefix("hf_posenc.").replace(".", "/") + ".py"
    parts = [
        f"# {record.name}\n",
        prose(record.title) + "\n",
        facts(record),
        picture(record, folder.parent),
        f"## Formula\n\n{page(record.text.partition(chr(10))[2].strip(chr(10)), record.formula)}",
        f"## Options\n\n{page(record.about)}\n{options(record)}",
        f"## Use\n\n{USE.format(model=example_model(record), name=record.name)}",
        properties(record),
        evidence(record),
        links(record),
        citation(record),
        f"## Code\n\nClass `{name}`, as models run it:\n\n"
        f"```{{literalinclude}} ../../hf_posenc/{source}\n:language: python\n```\n",
    ]
    return "\n".join(part for part in parts if part)


def example_model(record: SchemeRecord) -> str:
    """Name of a starter for which the scheme is defined."""
    return "gpt2" if "table" in record.needs else "llama"


def facts(record: SchemeRecord) -> str:
    """The scheme's record as a table of two columns."""
    also = ", ".join(map(code, record.aliases))
    rows = [
        ("also called", also),
        ("on a pretrained model", USES[record.use]),
        ("trained", "has parameters to train" if record.learned else "has no parameters by default"),
        ("defined for", f"{record.defined_for} ([families](../families.md))"),
        ("what it does", "; ".join(f"{what} ([`{hook}`](#{anchor(hook)}))" for hook, what in hooks(record).items())),
        ("KV cache", CACHES.get(record.cache, record.cache).removeprefix("the KV cache ")),
        ("paper", f"[{paper_name(record.paper)}]({paper_address(record.paper)})" if record.paper else ""),
    ]
    return table(("", ""), [row for row in rows if row[1]])


def citation(record: SchemeRecord) -> str:
    """Section with the BibTeX entry of a scheme, collapsed."""
    summary = f"<summary>BibTeX: <code>hf-posenc info {record.name} --bibtex</code></summary>"
    return f"## Cite\n\n<details>\n{summary}\n\n```bibtex\n{cite(record.name)}\n```\n\n</details>\n"


def hooks(record: SchemeRecord) -> dict[str, str]:
    """The hooks that a scheme's class overrides, with what they do."""
    cls = scheme_class(record.name)
    return {hook: what for hook, what in HOOKS.items() if getattr(cls, hook) is not getattr(Scheme, hook)}


def anchor(hook: str) -> str:
    """Link target of a hook."""
    return f"hf_posenc.Scheme.{hook}"


def picture(record: SchemeRecord, docs: Path) -> str:
    """Directive for the scheme's plot."""
    return f"```{{picture}} scheme-{record.name}\n```\n" if record.name else ""


def options(record: SchemeRecord) -> str:
    """Table of options with their ranges and defaults."""
    if not record.options:
        return "There are no options.\n"
    rows = [(code(name), kind.replace("|", "\\|"), code(default) or "required")
            for name, (kind, default) in record.options.items()]  # fmt: skip
    return table(("option", "value", "default"), rows)


def index(records: list[SchemeRecord]) -> str:
    """Index page of all schemes, grouped by their use."""
    groups = {
        "Zero-shot": ("zero-shot", "A pretrained RoPE model can use these without training."),
        "Training": ("training", "These change what a model was pre-trained with, and need a fine-tune."),
        "Recipes": ("recipe", "These change positions while a model is trained, on top of the scheme it has."),
    }
    parts = ["# Schemes\n", INTRODUCTION]
    for title, (use, about) in groups.items():
        rows = [(f"[{r.name}]({r.name}.md)", prose(r.summary), r.defined_for, "yes" if r.learned else "")
                for r in records if r.use == use]  # fmt: skip
        parts.append(f"## {title}\n\n{about}\n\n{table(('scheme', 'what it is', 'defined for', 'learned'), rows)}")
    parts.append("```{toctree}\n:hidden:\n\ngallery\n" + "\n".join(record.name for record in records) + "\n```\n")
    return "\n".join(parts)


INTRODUCTION = """Every page is made from the scheme's record and source. `hf-posenc list` and `hf-posenc info NAME`
show the same. Schemes compose with `+`: a scaling with a temperature, a remap or a window (`"yarn+logn"`,
`"llama3+dca"`). A combination without meaning is refused. Pass the options of all parts together.
One picture of each: [](gallery.md).
"""
