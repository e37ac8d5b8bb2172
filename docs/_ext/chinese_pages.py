"""Pages under ``zh/``: set their language, translate the theme's words, and link each page and its translation."""

from __future__ import annotations

from typing import Any

FOLDER = "zh/"
WORDS = {
    "Back to top": "回到顶部",
    "Contents": "目录",
    "Home": "首页",
    "Next": "下一页",
    "On this page": "本页内容",
    "Previous": "上一页",
    "Search": "搜索",
    "Skip to content": "跳到正文",
}


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.connect("html-page-context", localise)
    return {"version": "1", "parallel_read_safe": True}


def localise(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Set the language of a page, and link its translation if there is one."""
    if pagename.startswith(FOLDER):
        context.update(language="zh-CN", _=translated, gettext=translated)
    other = translation(pagename)
    if other in app.env.found_docs:
        tag, name = ("zh-CN", "中文") if other.startswith(FOLDER) else ("en", "English")
        address = app.builder.get_relative_uri(pagename, other)
        link = f'<a href="{address}" hreflang="{tag}" lang="{tag}">{name}</a>'
        context["body"] = f'<p class="other-language">{link}</p>{context["body"]}'
        context["metatags"] += f'<link rel="alternate" hreflang="{tag}" href="{address}">'


def translation(page: str) -> str:
    """Name of a page's translation, which need not exist."""
    return page.removeprefix(FOLDER) if page.startswith(FOLDER) else FOLDER + page


def translated(message: str, **values: Any) -> str:
    """Translate a text of the theme to Chinese; a text without a translation is returned unchanged."""
    text = WORDS.get(message, message)
    return text % values if values else text
