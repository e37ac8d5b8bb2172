"""Records of local files for tasks, or of all files of records below a folder; their fields are checked by pydantic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hf_posenc.errors import UnreadableDocuments, shown
from hf_posenc.texts.files import FORMATS
from hf_posenc.texts.source import files_below, kind_of


def several(value: Any) -> Any:
    """One text or several, also as SQuAD has them, ``{"text": [...]}`` or ``[{"text": …}]``, each once."""
    value = value.get("text", value) if isinstance(value, Mapping) else value
    found = value if isinstance(value, (list, tuple)) else [value]
    return list(dict.fromkeys(one.get("text") if isinstance(one, Mapping) else one for one in found))


Text = Annotated[str, Field(pattern=r"\S")]
Texts = Annotated[tuple[Text, ...], MinLen(1), BeforeValidator(several)]


class Record(BaseModel):
    """The fields of a record that a task reads; others are left out."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


Kind = TypeVar("Kind", bound=Record)


def local_records(sources: Sequence[str | Path], task: str, kind: type[Kind]) -> Iterator[Kind]:
    """Every record of some files and folders.

    Args:
        sources: files and folders.
        task: what needs them, for the error.
        kind: of the records.

    Raises:
        UnreadableDocuments: there is no source, it cannot be read, or a record lacks what is needed.
    """
    if not sources:
        raise UnreadableDocuments(
            f"The task {task} reads its documents from a file, and none is named. Pass data=FILE (--set data=FILE)."
        )
    for source in sources:
        path = Path(source).expanduser()
        for file in files_below(path, FORMATS) if path.is_dir() else [path]:
            if kind_of(file) not in FORMATS:
                raise UnreadableDocuments(
                    f"The file {shown(str(file))} is not a file of records. Pass one that ends in {', '.join(FORMATS)}."
                )
            for place, record in FORMATS[kind_of(file)](file):
                try:
                    yield kind.model_validate(record)
                except ValidationError as error:
                    first = error.errors(include_url=False)[0]
                    field, rule = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
                    raise UnreadableDocuments(
                        f"{place} cannot be used, because of {field or 'its form'}: {rule}. Correct {shown(record)}."
                    ) from None
