"""Options of lm-eval's tasks, and the parsers of their values."""

from __future__ import annotations

import json
from typing import Any

from hf_posenc.cli.errors import BadArgument


def json_mapping(option: str, given: str | None) -> dict[str, Any]:
    """Parse a JSON object; empty where none is given.

    Raises:
        BadArgument: it is no JSON, or no object.
    """
    try:
        found = json.loads(given) if given is not None else {}
    except ValueError as error:
        raise BadArgument(f'{option} is no JSON: {error}. Pass for example \'{{"docs": "books"}}\'.') from error
    if not isinstance(found, dict):
        raise BadArgument(f'{option} must be a JSON object, got {given}. Pass for example \'{{"docs": "books"}}\'.')
    return found
