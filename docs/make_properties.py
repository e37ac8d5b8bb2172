"""Write docs/properties.json: ``python docs/make_properties.py [NAME …]``; without names all schemes, in minutes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "examples" / "lessons"))

from properties import measure  # noqa: E402

from hf_posenc.core.files.atomic import write_json  # noqa: E402
from hf_posenc.schemes.registry import list_schemes  # noqa: E402

if __name__ == "__main__":
    file, names = DOCS / "properties.json", sys.argv[1:]
    table = measure([(name, {}) for name in names or [record.name for record in list_schemes()]])
    stored = json.loads(file.read_text(encoding="utf-8")) if names else {}
    measured = {name: {key: cell.to_dict() for key, cell in row.items()} for name, row in table.items()}
    write_json(file, dict(sorted({**stored, **measured}.items())))
