"""Write docs/properties.json: the measured properties of every scheme.

python docs/make_properties.py
"""

from __future__ import annotations

from pathlib import Path

from hf_posenc.core.files.atomic import write_json
from hf_posenc.insight.properties import measure
from hf_posenc.schemes.registry import list_schemes

FILE = Path(__file__).parent / "properties.json"

if __name__ == "__main__":
    table = measure(record.name for record in list_schemes())
    write_json(FILE, {name: {key: cell.to_dict() for key, cell in row.items()} for name, row in table.items()})
