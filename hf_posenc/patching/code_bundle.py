"""A checkpoint that brings its code: ``save_pretrained(folder, code="bundle")``.

modeling_hf_posenc.py   the classes that ``auto_map`` of config.json names
hf_posenc_code.py       the modules of this package that they need, as they are, and what imports them

`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` then needs transformers and a few packages, but
not this one. The modules are those that the scheme, the adapter of the model and the loader import, found in their
syntax trees: about a hundred and fifty, as everything that an attention call may need is among them. Two files, because
transformers fetches what a file imports by its name alone, without folders, and asks the Hub for each.

Without ``trust_remote_code`` the config guard refuses the checkpoint as ever; `hf_posenc.from_pretrained` loads it with
the installed package.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from hf_posenc.core import source_finder
from hf_posenc.core.files.atomic import write_bytes
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import NotExpressible
from hf_posenc.patching.config_guard import MODELING
from hf_posenc.patching.model_card import update_metadata, write_section
from hf_posenc.patching.state import STASH, describe
from hf_posenc.schemes.base import Scheme

BUNDLE = "bundle"
IN_TEXTS, ROOT = source_finder.IN_TEXTS, __name__.partition(".")[0]
FROM_BUNDLE = ROOT != IN_TEXTS
"""Whether this module was itself loaded from a checkpoint: what is saved then brings its code again."""
CODE = "hf_posenc_code"
LOADER = "checkpoints.bundled"
LICENCE = """# Part of the Python package hf-posenc, version {version}.
# Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0
# Distributed on an "AS IS" basis, without warranties or conditions of any kind.
"""
CODE_HEAD = """#
# `TEXTS` below holds modules of that package which this checkpoint needs, each as it is there. The lines before it
# import them under another name than an installed package has.

"""
MODELING_TEXT = '''"""A {model} with positions of the package hf-posenc: {scheme}. Made when it was saved.

Load the folder with an Auto class and ``trust_remote_code=True``.
"""

from importlib import import_module

{packages}
import transformers

from .{code} import PACKAGE

for name in {modules}:
    import_module(f"{{PACKAGE}}.{{name}}")  # registers what it defines
bundled = import_module(f"{{PACKAGE}}.{loader}")

{config} = bundled.config_class(transformers.{config})
{classes}
'''
PACKAGES = ("accelerate", "annotated_types", "packaging", "pydantic", "safetensors", "torch")
"""What the modules import beside transformers; named in the code, so that transformers says which one is missing."""


def check_code(model: Any) -> None:
    """Refuse a model whose code `write_code` cannot write, before its weights are written. Raises as that does."""
    host_class(model)
    own_modules(model)


def write_code(model: Any, folder: Path) -> None:
    """Add its code to a checkpoint that was just saved.

    Args:
        model: patched; as it was saved.
        folder: of the checkpoint.

    Raises:
        NotExpressible: the code of a scheme, an adapter or the model is not of this package or of transformers, or the
            weights are quantised.
    """
    host, own = host_class(model), own_modules(model)
    autos = auto_classes(host)
    write_bytes(folder / f"{CODE}.py", code_text(own).encode())
    write_bytes(folder / f"{MODELING}.py", modeling_text(host, autos, own, describe(model).scheme).encode())
    content = read_object(folder / "config.json")
    of_auto = {"AutoConfig": host.config_class.__name__, **autos}
    content["auto_map"] = {auto: f"{MODELING}.{name}" for auto, name in of_auto.items()}
    write_bytes(folder / "config.json", (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
    write_section(folder, content["position_scheme"], next(iter(autos), host.__name__))
    update_metadata(folder, library_name="transformers")


def code_text(own: Iterable[str]) -> str:
    """The file of the modules that ``own`` and the loader need, and of what imports them."""
    texts = {inside(name): text_of(name) for name in closure((*own, f"{ROOT}.{LOADER}"))}
    quoted = "".join(f"    {name!r}: {quote(texts[name])},\n" for name in sorted(texts))
    head = LICENCE.format(version=version_here()) + CODE_HEAD + text_of(source_finder.__name__)
    return f"{head}\n\nTEXTS = {{\n{quoted}}}\nPACKAGE = install(TEXTS)\n"


def modeling_text(host: Any, autos: Mapping[str, str], own: Iterable[str], scheme: str) -> str:
    """The file of the classes that ``auto_map`` names.

    Args:
        host: class of the model.
        autos: Auto classes, and the class each chooses.
        own: modules that define the schemes and adapters.
        scheme: name of the scheme.
    """
    classes = sorted({host.__name__, *autos.values()})
    return LICENCE.format(version=version_here()) + MODELING_TEXT.format(
        model=host.__name__, scheme=scheme, code=CODE, loader=LOADER, config=host.config_class.__name__,
        modules=tuple(inside(name) for name in own),
        packages="\n".join(f"import {name}  # noqa: F401" for name in PACKAGES),
        classes="\n".join(f"{name} = bundled.model_class(transformers.{name})" for name in classes),
    )  # fmt: skip


def host_class(model: Any) -> Any:
    """The class of transformers that a model is of.

    Raises:
        NotExpressible: it is of another package, has adapters of PEFT in it, or is quantised.
    """
    changed = (one for module in model.modules() for one in getattr(vars(module).get(STASH), "classes", ()))
    found = next((cls for module, cls in changed if module is model), type(model))
    known: Any = getattr(transformers, found.__name__, None)
    if known is not found:
        raise NotExpressible(
            f"The class {found.__name__} is not part of transformers, so its code cannot be bundled. Save the "
            "checkpoint without code=, and load it where that class is installed."
        )
    if getattr(model, "is_quantized", False) or any(not one.is_floating_point() for one in model.parameters()):
        raise NotExpressible(
            f"The weights of this {found.__name__} are quantised, and a checkpoint that brings its code cannot say "
            "how. Save it without code=, or load the model in a floating dtype first."
        )
    if getattr(model, "peft_config", None):
        raise NotExpressible(
            f"This {found.__name__} carries a PEFT adapter, which a checkpoint that brings its code does not hold. "
            "Merge it first: hf-posenc merge, or merge_and_unload()."
        )
    return found


def own_modules(model: nn.Module) -> list[str]:
    """The modules that define the schemes and adapters of a patched model.

    Raises:
        NotExpressible: one of them is not part of this package.
    """
    classes: dict[type, str] = {}
    for module in model.modules():
        if isinstance(module, Scheme):
            classes[type(module)] = "scheme"
        if STASH in module.__dict__:
            classes[type(module.__dict__[STASH].adapter)] = "adapter"
            layout = module.__dict__[STASH].layout
            for plan in (layout.default, *layout.layers.values()):
                classes.update(dict.fromkeys((cls for cls, _ in plan.parts), "scheme"))
    foreign = next((cls for cls in classes if not cls.__module__.startswith(f"{ROOT}.")), None)
    if foreign is not None:
        raise NotExpressible(
            f"The {classes[foreign]} {foreign.__name__} is defined in {foreign.__module__}, which is not part of "
            "hf_posenc, so its code cannot be bundled. Save the checkpoint without code=, and publish that file."
        )
    return sorted({cls.__module__ for cls in classes})


def auto_classes(host: Any) -> dict[str, str]:
    """The Auto classes that know the configuration of a model class, with the class each chooses; its own first."""
    found: dict[str, str] = {}
    for name in dir(transformers.models.auto.modeling_auto):
        auto = getattr(transformers.models.auto.modeling_auto, name)
        if name.startswith("AutoModel") and hasattr(auto, "_model_mapping") and hasattr(transformers, name):
            chosen = auto._model_mapping.get(host.config_class, ())
            for cls in chosen if isinstance(chosen, tuple) else (chosen,):
                if name not in found or cls is host:
                    found[name] = cls.__name__
    return dict(sorted(found.items(), key=lambda one: one[1] != host.__name__ or not one[0].startswith("AutoModelFor")))


def closure(names: Iterable[str]) -> set[str]:
    """Modules of this package, everything of it that they import, and the packages all of these are in."""
    found, left = {ROOT}, list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        left += [name.rpartition(".")[0], *imports_of_text(text_of(name))]
    return found


def imports_of_text(text: str) -> Iterator[str]:
    """Modules of this package that a module imports, by their names here; not what type checkers alone import."""
    left: list[ast.AST] = [ast.parse(text)]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == IN_TEXTS:
            module = f"{ROOT}{str(node.module).removeprefix(IN_TEXTS)}"
            yield module
            yield from (name for one in node.names if is_module(name := f"{module}.{one.name}"))


def is_module(name: str) -> bool:
    """Whether a name is that of a module, and not of something in one."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def text_of(name: str) -> str:
    """The source of a module of this package; of the package itself, a docstring and the version.

    Raises:
        NotExpressible: it was installed without its source.
    """
    if name == ROOT:
        return f'"""Part of hf-posenc, in a checkpoint."""\n\n__version__ = {version_here()!r}\n'
    spec = find_spec(name)
    loader: Any = None if spec is None else spec.loader
    text = loader.get_source(name) if hasattr(loader, "get_source") else None
    if text is None:
        raise NotExpressible(f"The source of {name} is not installed, so it cannot be bundled. Install it again.")
    return str(text)


def inside(name: str) -> str:
    """The name of a module inside its package."""
    return name.partition(".")[2]


def quote(text: str) -> str:
    """A literal of a text that reads as the text does, wherever that can be."""
    plain = f"r'''{text}'''"
    return plain if "'''" not in text and not text.endswith(("\\", "'")) else repr(text)


def version_here() -> str:
    """The version of this package, also where it runs from a checkpoint."""
    return str(import_module(ROOT).__version__)
