"""The model card: a section of a checkpoint's README that says how to load it; the rest is left unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.schemes.registry import list_schemes

SCHEME_KEY = "position_scheme"  # of a configuration: the scheme, its options and lengths
OWN = "hf_posenc."
START, END = "<!-- hf_posenc -->", "<!-- /hf_posenc -->"
FRONT_MATTER = "---\nlibrary_name: hf_posenc\n---\n\n"
SECTION = """## How to load this

Positions were changed by `hf_posenc`: {scheme}, trained on {trained_length}
tokens, for texts of {target_length}. Without that package these weights compute something else, so they do not load.

```python
import hf_posenc
{imports}
model = hf_posenc.from_pretrained("{name}")
```

A tokenizer cuts texts at its `model_max_length`: set that to {target_length} or more.
"""

PLAIN_FRONT_MATTER = "---\nlibrary_name: transformers\n---\n\n"
PLAIN_SECTION = """## Length of texts

Positions were changed by `hf_posenc`: {scheme}, trained on {trained_length} tokens, for texts of {target_length}.
This checkpoint needs no package beside transformers; its `config.json` says the rotation.
"""


def write_plain_section(folder: Path, scheme: str, trained_length: int, target_length: int) -> None:
    """Write into the README of ``folder`` what an exported checkpoint is, replacing an earlier section.

    Args:
        folder: of the checkpoint.
        scheme: as it was patched, with its options.
        trained_length, target_length: in tokens.
    """
    lengths = {"trained_length": f"{trained_length:,}", "target_length": f"{target_length:,}"}
    replace_section(folder, PLAIN_SECTION.format(scheme=scheme, **lengths), PLAIN_FRONT_MATTER)


def write_section(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the section into the README of ``folder``, replacing an earlier one.

    Args:
        folder: of a checkpoint.
        config: its ``position_scheme``.
    """
    names = [part["name"] for part in config["scheme"]]
    lengths = {name: config[name] for name in ("trained_length", "target_length")}
    replace_section(
        folder,
        SECTION.format(scheme="+".join(names), name=folder.name, imports=imports_of(names), **lengths),
        FRONT_MATTER,
    )


def imports_of(names: Collection[str]) -> str:
    """Lines of Python that import the modules of schemes from outside this package; empty where there are none."""
    modules = {record.name: record.target.partition(":")[0] for record in list_schemes() if record.name in names}
    return "".join(
        f"import {module}  # registers {name}\n" for name, module in modules.items() if not module.startswith(OWN)
    )


def replace_section(folder: Path, section: str, front_matter: str) -> None:
    """Put this package's section into the README of ``folder``, in the place of an earlier one; the rest is kept.

    Args:
        folder: of a checkpoint or an adapter.
        section: the text, in Markdown.
        front_matter: what a new file begins with.
    """
    file = folder / "README.md"
    text = file.read_text(encoding="utf-8") if file.exists() else front_matter
    section = START + "\n" + section + END
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if start and end:
        text = before + section + after
    else:
        text = text.rstrip("\n") + ("\n\n" if text.strip() else "") + section + "\n"
    write_bytes(file, text.encode())
