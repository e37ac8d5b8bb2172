"""The folder of our task files."""

from __future__ import annotations

from pathlib import Path

TASKS = Path(__file__).parent / "tasks"
"""The folder of our task files, for lm-eval's ``include_path``."""
