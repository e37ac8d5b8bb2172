"""Measure the properties of schemes: ``python examples/lessons/properties rope alibi [--json]``."""

import argparse
import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not the package's own folder, which Python puts there

from lesson import show

from hf_posenc.schemes.entry import entries_of
from properties import PROPERTIES, measure

parser = argparse.ArgumentParser(description="Measure the properties of schemes: unique, relative, bounded ...")
parser.add_argument("schemes", nargs="+", metavar="SCHEME", help="such as rope or yarn:beta_fast=16")
parser.add_argument("--json", action="store_true", help="write JSON")
arguments = parser.parse_args()
entries = entries_of(arguments.schemes)
table = measure((entry.scheme or "none", entry.options) for entry in entries)  # a row for each kind of layer
if arguments.json:
    print(json.dumps({label: {key: cell.to_dict() for key, cell in row.items()} for label, row in table.items()}))
else:
    for label, row in table.items():
        rows = [(PROPERTIES[key].question, cell, cell.explanation) for key, cell in row.items()]
        show(("property", label, "the number"), rows)
