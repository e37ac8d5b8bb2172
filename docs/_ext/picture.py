"""``{picture} name``: a plot with the command that makes it; the command alone where the file does not exist.

On a page under ``zh/`` the same plot with Chinese labels and caption.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from chinese_pages import FOLDER as CHINESE
from chinese_pictures import chinese_picture
from docutils import nodes
from make_pictures import FOLDER, picture
from sphinx.util.docutils import SphinxDirective


class PictureDirective(SphinxDirective):
    """A figure of `make_pictures.PICTURES`, with its caption and its command."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """The figure, or the command that makes it."""
        wanted = picture(self.arguments[0])
        line = nodes.literal_block(f"$ {wanted.line}", f"$ {wanted.line}", language="console")
        place, shows = Path(FOLDER.name) / wanted.file, wanted.caption
        if self.env.docname.startswith(CHINESE):
            chinese = chinese_picture(wanted.name)
            place, shows = CHINESE / chinese.file, chinese.shows
        file = FOLDER.parent / place
        self.env.note_dependency(str(file))
        if not file.exists():
            return [] if wanted.optional else [line]
        image = nodes.image(uri=f"/{place.as_posix()}", alt=shows)
        figure = nodes.figure("", image, nodes.caption(shows, shows))
        return [figure, line]


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("picture", PictureDirective)
    return {"version": "1", "parallel_read_safe": True}
