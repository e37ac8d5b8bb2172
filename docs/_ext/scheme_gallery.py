"""The gallery: a thumbnail of every scheme's picture, each a link to the scheme's page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from make_pictures import FOLDER, picture

from hf_posenc.core.record import SchemeRecord

HEAD = """# Gallery

What each scheme does, in one picture: `hf-posenc show NAME` draws it, and `hf-posenc show NAME --list` says what else
can be drawn. A click leads to the page of the scheme.
"""
NOT_MADE = """The pictures of this copy have not been made:

```console
$ python docs/make_pictures.py schemes
```
"""


def gallery(records: Sequence[SchemeRecord]) -> str:
    """The page: pictures that have been made, and a list of the schemes without one."""
    drawn = [record for record in records if (FOLDER / picture(f"scheme-{record.name}").file).exists()]
    if not drawn:
        return f"{HEAD}\n{NOT_MADE}"
    others = [f"[{record.name}]({record.name}.md)" for record in records if record not in drawn]
    rest = f"\nWithout a picture: {', '.join(others)}.\n" if others else ""
    return f"{HEAD}\n:::{{container}} gallery\n{chr(10).join(map(thumbnail, drawn))}\n:::\n{rest}"


def thumbnail(record: SchemeRecord) -> str:
    """One picture with its name, linked."""
    file = picture(f"scheme-{record.name}").file
    return (
        f"```{{figure}} ../pictures/{file}\n:target: {record.name}.html\n:alt: {escape(record.summary)}\n"
        f":loading: lazy\n\n{record.name}\n```\n"
    )
