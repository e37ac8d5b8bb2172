"""Check the settings of a dataclass against its annotations, which define types, choices and bounds."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_type_hints

from hf_posenc.errors import PosEncError, nearest, shown

if TYPE_CHECKING:
    from pydantic import BaseModel


def check_fields(settings: Any, refusal: type[PosEncError]) -> None:
    """Check every field of a dataclass by pydantic in strict mode.

    Raises:
        PosEncError: of type ``refusal``: a field has another type, or is out of bounds.
    """
    from pydantic import ValidationError

    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    kind: Any = type(settings)
    try:
        validator(kind).model_validate(values)
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))  # the closest match in a union
        name, rule = str(first["loc"][0]), first["msg"].replace("Input", "It")
        choices = str(first.get("ctx", {}).get("expected", "")).replace(" or ", ", ").replace("'", "").split(", ")
        raise refusal(f"{name}={shown(values[name])} was asked for.{nearest(values[name], choices)} {rule}.") from None


@lru_cache(maxsize=32)
def validator(kind: type[Any]) -> type[BaseModel]:
    """The pydantic model with the fields of a dataclass."""
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(kind, include_extras=True)
    declared: Any = {field.name: (hints[field.name], ...) for field in fields(kind)}
    return create_model(
        kind.__name__, __config__=ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=()), **declared
    )
