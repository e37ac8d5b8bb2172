"""The model card (``README.md``) of a PEFT adapter on a patched base: what it is, what it needs, how to load it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hf_posenc.patching.model_card import imports_of, replace_section
from hf_posenc.patching.peft_sidecar import PARAMETERS, SIDECAR, position_parameters
from hf_posenc.patching.state import describe

HEAD = "---\n{base}library_name: peft\ntags:\n- hf_posenc\n- {kind}\n---\n\n"
SECTION = """# {title}

A PEFT adapter ({kind}) that was trained under another positional encoding than the base model has. Without it the
weights compute something else, so the adapter loads through `hf_posenc` only.

| | |
|---|---|
| base model | {base} |
| positional scheme | `{scheme}` |
| trained length (pre-training) | {trained:,} tokens |
| target length | {target:,} tokens |
| factor | {factor:g} |
{rows}
## How to load this

```python
import hf_posenc
{imports}
model = hf_posenc.from_pretrained({base!r}, peft_adapter={name!r})
```

The base is loaded, patched and given the adapter. A base that is patched with the same scheme takes it from PEFT as
well: `PeftModel.from_pretrained(model, {name!r})`, where `hf_posenc` is imported.

A tokenizer cuts texts at its `model_max_length`: set that to {target} or more.

The scheme is in `{sidecar}`{parameters}; keep the files together.
"""


def write_adapter_card(model: nn.Module, folder: Path, training: Mapping[str, Any] | None = None) -> None:
    """Write the card into ``folder``; text that is not this package's is kept."""
    config: Any = next(iter(model.peft_config.values()))  # type: ignore[operator]
    kind = str(getattr(config.peft_type, "value", config.peft_type)).lower()
    base = config.base_model_name_or_path or "the base model it was trained on"
    report = describe(model)
    facts = {name.replace("_", " "): value for name, value in (training or {}).items()}
    section = SECTION.format(
        title=f"{os.path.basename(base.rstrip('/'))}, {report.scheme}, {report.target_length:,} tokens",
        kind=kind.upper(), base=base, scheme=report.scheme, trained=report.trained_length, target=report.target_length,
        factor=report.target_length / report.trained_length, name=folder.name, sidecar=SIDECAR,
        parameters=f", its learned parameters in `{PARAMETERS}`" if position_parameters(model) else "",
        imports=imports_of(report.scheme.split("+")),
        rows="".join(f"| {name} | {value} |\n" for name, value in facts.items()),
    )  # fmt: skip
    named = "" if os.path.isdir(base) or not config.base_model_name_or_path else f"base_model: {base}\n"
    replace_section(folder, section, HEAD.format(base=named, kind=kind))
