"""One static page that shows schemes at work: numbers follow sliders for base, factor, width, position and distance.

    from hf_posenc.insight.interactive import write_page
    write_page(["rope", "yarn", "my_scheme"], "page.html")

The command is ``hf-posenc show --interactive``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.interactive.page import page_html as page_html
    from hf_posenc.insight.interactive.page import write_page as write_page

__getattr__, __dir__, __all__ = lazy_exports(
    __name__, {"hf_posenc.insight.interactive.page": ("page_html", "write_page")}
)
