"""Configuration of Sphinx: ``python -m sphinx -W -n docs docs/_build``. Nothing is downloaded."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]
sys.path.append(str(DOCS.parent / "examples" / "lessons"))  # for `properties`

import hf_posenc  # noqa: E402

project = "hf-posenc"
author = "the hf-posenc authors"
copyright = author
version = release = hf_posenc.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "scheme_pictures",
    "scheme_pages",
    "command_page",
    "picture",
    "offline_math",
    "chinese_pages",
    "chinese_search",
    "interactive_page",
    "make_seams",
    "make_families",
    "make_readers",
]
# zh/README.md links to files outside the site.
exclude_patterns = ["_build", "_ext", "jupyter_execute", "pictures", "zh/README.md"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_html_meta = {
    "description lang=en": "Replace the positional encoding of a Hugging Face transformer: RoPE scalings, YaRN, ALiBi, "
    "attention sinks and more than fifty others, for context extension, length extrapolation and long context.",
    "keywords": "positional encoding, position embedding, RoPE, YaRN, ALiBi, context length, context window, "
    "context extension, length extrapolation, long context, KV cache, StreamingLLM, transformers",
}

# Notebooks are executed by the build, each once: results are kept in docs/.jupyter_cache until a cell changes.
# After a change of the package itself, remove that folder.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_output_stderr = "remove"  # progress bars

# Single backticks in docstrings are code; public names are linked from the text and from annotations.
default_role = "code"
smartquotes = False  # options and formulas are copied from here
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Class attributes", "params_style")]
nitpicky = True
# Inventories of other projects cannot be fetched offline. All names of this package except type variables must resolve.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!~?hf_posenc\.).*"),
    (r"py:.*", r"hf_posenc\.[\w.]+\.[A-Z]"),
]

mathjax3_config = {"options": {"enableMenu": False}, "svg": {"fontCache": "global"}}

html_theme = "furo"
html_search_language = "en+zh"
html_title = f"hf-posenc {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"


def setup(app):
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", whole_sentence, priority=600)  # after napoleon's 500


def whole_sentence(app, what, name, obj, options, lines):
    """Restore the text before the first colon in a property's docstring, which napoleon parses as a type."""
    for number, line in enumerate(lines):
        if what == "property" and line.startswith(":type: "):
            del lines[number]
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"
            return
