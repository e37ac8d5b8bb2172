"""Make the scripts of examples/findings and examples/lessons importable, as when they run."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES / "findings"), str(EXAMPLES / "lessons")]
