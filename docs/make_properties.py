"""Write docs/properties.json: the measured properties of all schemes, in some two minutes."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "examples" / "lessons"))

from properties import measure  # noqa: E402

from hf_posenc.core.files.atomic import write_json  # noqa: E402
from hf_posenc.schemes.registry import list_schemes  # noqa: E402

if __name__ == "__main__":
    table = measure([(record.name, {}) for record in list_schemes()])
    found = {name: {key: cell.to_dict() for key, cell in row.items()} for name, row in table.items()}
    write_json(DOCS / "properties.json", found)
