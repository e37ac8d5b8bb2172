"""``{picture} name``: a plot with the command that makes it; the command alone where the file does not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

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
        file = FOLDER / wanted.file
        self.env.note_dependency(str(file))
        if not file.exists():
            return [] if wanted.optional else [line]
        image = nodes.image(uri="/" + str(Path("pictures") / wanted.file), alt=wanted.shows)
        figure = nodes.figure("", image, nodes.caption(wanted.shows, wanted.shows))
        return [figure, line]


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("picture", PictureDirective)
    return {"version": "1", "parallel_read_safe": True}
