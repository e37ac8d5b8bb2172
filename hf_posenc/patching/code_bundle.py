"""A checkpoint that brings its code: ``save_pretrained(folder, code="bundle")``.

modeling_hf_posenc.py   the classes that ``auto_map`` of config.json names
hf_posenc_code.py       unchanged copies of the modules of this package that they need, and the code that imports them

`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` then needs transformers and a few packages, but
not this one. The bundle holds the modules that the scheme, the model's adapter and the loader import, as read from
their syntax trees. These are about 150, because an attention call may need any of them. They are packed into one file,
because transformers fetches each imported file from the Hub separately, and ignores folders.

Without ``trust_remote_code`` the config guard refuses the checkpoint, as it refuses any other. With the installed
package, `hf_posenc.from_pretrained` loads it.
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
from hf_posenc.patching.scheme_config import classes_of
from hf_posenc.patching.state import describe, patches_in
from hf_posenc.schemes.base import Scheme

BUNDLE = "bundle"
IN_TEXTS, ROOT = source_finder.IN_TEXTS, __name__.partition(".")[0]
FROM_BUNDLE = ROOT != IN_TEXTS
"""Whether this module was itself loaded from a checkpoint. Models saved by it then bring their code by default."""
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

{config} = bundled.guarded_class(transformers.{config})
{classes}
'''
PACKAGES = ("accelerate", "annotated_types", "packaging", "pydantic", "safetensors", "torch")
"""Packages that the modules import besides transformers; named in the code, so transformers reports missing ones."""


def check_code(model: Any) -> None:
    """Refuse a model whose code `write_code` cannot write, with the same errors, before the weights are written."""
    host_class(model)
    own_modules(model)


def write_code(model: Any, folder: Path) -> None:
    """Add the code of ``model`` to the checkpoint that was just saved.

    Args:
        model: the patched model that was saved.
        folder: folder of the checkpoint.

    Raises:
        NotExpressible: a scheme or adapter is not part of this package, the model's class is not part of transformers,
            or the weights are quantised.
    """
    host, own = host_class(model), own_modules(model)
    autos = auto_classes(host)
    write_bytes(folder / f"{CODE}.py", code_text(own).encode())
    write_bytes(folder / f"{MODELING}.py", modeling_text(host, autos, own, describe(model).scheme).encode())
    content = read_object(folder / "config.json")
    classes = {"AutoConfig": host.config_class.__name__, **autos}
    content["auto_map"] = {auto: f"{MODELING}.{name}" for auto, name in classes.items()}
    write_bytes(folder / "config.json", (json.dumps(content, indent=2, sort_keys=True) + "\n").encode())
    write_section(folder, content["position_scheme"], next(iter(autos), host.__name__))
    update_metadata(folder, library_name="transformers")


def code_text(own: Iterable[str]) -> str:
    """Text of the file with all modules that ``own`` and the loader need, and with the code that imports them."""
    texts = {inside(name): text_of(name) for name in closure((*own, f"{ROOT}.{LOADER}"))}
    quoted = "".join(f"    {name!r}: {quote(texts[name])},\n" for name in sorted(texts))
    head = LICENCE.format(version=version_here()) + CODE_HEAD + text_of(source_finder.__name__)
    return f"{head}\n\nTEXTS = {{\n{quoted}}}\nPACKAGE = install(TEXTS)\n"


def modeling_text(host: Any, autos: Mapping[str, str], own: Iterable[str], scheme: str) -> str:
    """Text of the file with the classes that ``auto_map`` names.

    Args:
        host: class of the model.
        autos: maps each Auto class to the class it chooses.
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
    """The transformers class of ``model`` before the patch.

    Raises:
        NotExpressible: the class is not part of transformers, the weights are quantised, or it carries a PEFT adapter.
    """
    changed = (change for patch in patches_in(model) for change in patch.classes)
    host = next((cls for module, cls in changed if module is model), type(model))
    known: Any = getattr(transformers, host.__name__, None)
    if known is not host:
        raise NotExpressible(
            f"The class {host.__name__} is not part of transformers, so its code cannot be bundled. Save the "
            "checkpoint without code=, and load it where that class is installed."
        )
    if getattr(model, "is_quantized", False) or any(not p.is_floating_point() for p in model.parameters()):
        raise NotExpressible(
            f"The weights of this {host.__name__} are quantised, and a checkpoint that brings its code cannot say "
            "how. Save it without code=, or load the model in a floating dtype first."
        )
    if getattr(model, "peft_config", None):
        raise NotExpressible(
            f"This {host.__name__} carries a PEFT adapter, which a checkpoint that brings its code does not hold. "
            "Merge it first: hf-posenc merge, or merge_and_unload()."
        )
    return host


def own_modules(model: nn.Module) -> list[str]:
    """The modules that define the schemes and adapters of a patched model.

    Raises:
        NotExpressible: one of them is not part of this package.
    """
    classes: dict[type, str] = {type(module): "scheme" for module in model.modules() if isinstance(module, Scheme)}
    for patch in patches_in(model):
        classes[type(patch.adapter)] = "adapter"
        classes.update(dict.fromkeys(classes_of(patch.layout), "scheme"))
    foreign = next((cls for cls in classes if not cls.__module__.startswith(f"{ROOT}.")), None)
    if foreign is not None:
        raise NotExpressible(
            f"The {classes[foreign]} {foreign.__name__} is defined in {foreign.__module__}, which is not part of "
            "hf_posenc, so its code cannot be bundled. Save the checkpoint without code=, and publish that file."
        )
    return sorted({cls.__module__ for cls in classes})


def auto_classes(host: Any) -> dict[str, str]:
    """Auto classes that support the configuration of ``host``, and the class each chooses; those of ``host`` first."""
    choices: dict[str, str] = {}
    for name in dir(transformers.models.auto.modeling_auto):
        auto = getattr(transformers.models.auto.modeling_auto, name)
        if name.startswith("AutoModel") and hasattr(auto, "_model_mapping") and hasattr(transformers, name):
            chosen = auto._model_mapping.get(host.config_class, ())
            chosen = chosen if isinstance(chosen, tuple) else (chosen,)
            for cls in chosen:
                if name not in choices or cls is host:
                    choices[name] = cls.__name__
    first = {name: cls for name, cls in choices.items() if cls == host.__name__ and name.startswith("AutoModelFor")}
    return first | choices


def closure(names: Iterable[str]) -> set[str]:
    """The named modules, all modules of this package that they import directly or indirectly, and their packages."""
    seen, pending = {ROOT}, list(names)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        pending += [name.rpartition(".")[0], *imports_of_text(text_of(name))]
    return seen


def imports_of_text(text: str) -> Iterator[str]:
    """Names of the modules of this package that a source imports, without imports under ``TYPE_CHECKING``."""
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == IN_TEXTS:
            module = f"{ROOT}{str(node.module).removeprefix(IN_TEXTS)}"
            yield module
            yield from (name for alias in node.names if is_module(name := f"{module}.{alias.name}"))


def is_module(name: str) -> bool:
    """Whether a dotted name is the name of a module, and not of a member of a module."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is a module, not a package
        return False


def text_of(name: str) -> str:
    """Source of a module of this package. For the package itself, a docstring and the version.

    Raises:
        NotExpressible: the module was installed without its source.
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
    """Python literal of ``text``: a raw triple-quoted string if the text allows it, else its ``repr``."""
    return repr(text) if "'''" in text or text.endswith(("\\", "'")) else f"r'''{text}'''"


def version_here() -> str:
    """Version of this package, also if it runs from a checkpoint."""
    return str(import_module(ROOT).__version__)
