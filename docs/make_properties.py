"""Write docs/properties.json: the measured properties of all schemes, in some two minutes."""

from __future__ import annotations

from pathlib import Path

from hf_posenc.core.files.atomic import write_json
from hf_posenc.insight.properties import measure
from hf_posenc.schemes.registry import list_schemes

if __name__ == "__main__":
    table = measure([(record.name, {}) for record in list_schemes()])
    found = {name: {key: cell.to_dict() for key, cell in row.items()} for name, row in table.items()}
    write_json(Path(__file__).parent / "properties.json", found)
