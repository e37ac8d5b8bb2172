"""Pages under ``zh/``: their language, the theme's words in Chinese, and links between a page and its translation."""

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
    """Set a page's language, and link its translation where there is one."""
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
    """The name a page's translation has, whether or not it exists."""
    return page.removeprefix(FOLDER) if page.startswith(FOLDER) else FOLDER + page


def translated(message: str, **values: Any) -> str:
    """A text of the theme in Chinese; as it is where it has no translation."""
    text = WORDS.get(message, message)
    return text % values if values else text
