"""The page is built by an extension of the docs."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[3] / "docs" / "_ext")]
