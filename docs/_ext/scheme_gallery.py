"""The gallery: a thumbnail of every scheme's picture, by kind, each a link to the scheme's page."""

from __future__ import annotations

from collections.abc import Sequence

from make_pictures import FOLDER, SCHEME, picture
from scheme_links import KINDS, kind

from hf_posenc.core.record import SchemeRecord

HEAD = """# Gallery

One picture of each scheme, above the command that draws it. `hf-posenc show NAME --list` lists its other plots. Each
scheme has its own scale. Click a picture to open the page of its scheme.
"""
NOT_MADE = """
The pictures of this copy have not been made:

```console
$ python docs/make_pictures.py schemes
```
"""


def gallery(records: Sequence[SchemeRecord]) -> str:
    """The page in Markdown: all existing pictures, and a list of the schemes without one."""
    drawn = [record for record in records if (FOLDER / file_of(record)).exists()]
    others = [f"[{record.name}]({record.name}.md)" for record in records if record not in drawn]
    parts = [HEAD, *(section(folder, drawn) for folder in (*KINDS, ""))]
    if not drawn:
        parts.append(NOT_MADE)
    elif others:
        parts.append(f"\nWithout a picture: {', '.join(others)}.\n")
    return "".join(parts)


def section(folder: str, drawn: Sequence[SchemeRecord]) -> str:
    """Section with the pictures of one folder of `hf_posenc.schemes`."""
    thumbnails = [thumbnail(record) for record in drawn if kind(record) == folder]
    if not thumbnails:
        return ""
    title = KINDS.get(folder, "positions of the model").capitalize()
    return f"\n## {title}\n\n:::{{container}} gallery\n{''.join(thumbnails)}:::\n"


def thumbnail(record: SchemeRecord) -> str:
    """One picture with its name, linked, and its command."""
    return (
        f"```{{figure}} ../pictures/{file_of(record)}\n:target: {record.name}.html\n:alt: {record.summary}\n\n"
        f"[{record.name}]({record.name}.md)\n\n`hf-posenc {picture(scheme_picture(record)).words}`\n```\n"
    )


def file_of(record: SchemeRecord) -> str:
    """Name of the file of a scheme's picture."""
    return picture(scheme_picture(record)).file


def scheme_picture(record: SchemeRecord) -> str:
    """Name of a scheme's picture."""
    return f"{SCHEME}{record.name}"
