"""Directive ``{picture} name``: a plot with the command that makes it, or only the command if the file is missing.

On a page under ``zh/``, the plot has Chinese labels and a Chinese caption.
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
        """Nodes of the figure and its command."""
        made = picture(self.arguments[0])
        line = nodes.literal_block(f"$ {made.line}", f"$ {made.line}", language="console")
        path, caption = Path(FOLDER.name) / made.file, made.caption
        if self.env.docname.startswith(CHINESE):
            chinese = chinese_picture(made.name)
            path, caption = CHINESE / chinese.file, chinese.shows
        file = FOLDER.parent / path
        self.env.note_dependency(str(file))
        if not file.exists():
            return [] if made.optional else [line]
        image = nodes.image(uri=f"/{path.as_posix()}", alt=caption)
        figure = nodes.figure("", image, nodes.caption(caption, caption))
        return [figure, line]


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("picture", PictureDirective)
    return {"version": "1", "parallel_read_safe": True}
