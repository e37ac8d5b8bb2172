"""Digests of what a number depends on besides the scheme and the weights: tokenizer, text, tasks and versions.

Digests of contents, not names: a file or a checkpoint can change under the same name.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("hf-posenc", "torch", "transformers", "tokenizers", "lm_eval")
COMPUTING = (
    "hf_posenc.attention", "hf_posenc.checkpoints", "hf_posenc.core", "hf_posenc.eval.comparison", "hf_posenc.eval.lm",
    "hf_posenc.eval.results", "hf_posenc.eval.tasks", "hf_posenc.eval.texts", "hf_posenc.patches", "hf_posenc.patching",
    "hf_posenc.texts",
)  # fmt: skip
"""The packages of this project that compute numbers, with all packages inside them."""
COMPUTING_ABOVE = ("hf_posenc.eval", "hf_posenc.schemes")
"""Packages whose modules compute numbers, unlike some packages inside: a report, and the schemes themselves, whose code
is in the key of a cell one by one."""
SOURCES = (".py", ".yaml")
READ = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""The special tokens that a model reads with a text."""


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of what a tokenizer makes of a text.

    Training and batching leave their traces in a saved tokenizer: a pad token, markers of a chat, and that the last
    batch was padded or cut. None of them changes the tokens of a text that does not spell such a marker out.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    roles = {role: str(token) for role, token in tokenizer.special_tokens_map.items() if role in READ}
    markers = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special} - set(roles.values())
    if backend is None:
        content = [type(tokenizer).__name__, {token: i for token, i in content.items() if token not in markers}]
    else:
        content["added_tokens"] = [added for added in content["added_tokens"] if added["content"] not in markers]
        content |= {"padding": None, "truncation": None}
    return digest_of(json.dumps([content, roles], sort_keys=True))


@lru_cache(maxsize=1)
def package_digest() -> str:
    """Digest of the source files of this package that compute numbers: an installation for development changes without
    a new version."""
    return digest_of("\n".join(f"{name} {digest_of(file.read_bytes())}" for name, file in computing_files().items()))


def computing_files() -> dict[str, Path]:
    """The source files of this package that compute numbers, by their package and their path below it."""
    patterns = dict.fromkeys(COMPUTING, "**/*") | dict.fromkeys(COMPUTING_ABOVE, "*")
    return {
        f"{package} {file.relative_to(folder)}": file
        for package, pattern in patterns.items()
        for folder in folders_of(package)
        for file in sorted(folder.glob(pattern))
        if file.suffix in SOURCES
    }


def folders_of(package: str) -> list[Path]:
    """The folders that a package is read from; none where it is not installed."""
    spec = find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]


def files_digest(path: Path, suffixes: tuple[str, ...] = (), without: Path | None = None) -> str:
    """Digest of a file, or of all files below a folder, less those below the folder ``without``."""
    files = (
        sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts) if path.is_dir() else [path]
    )
    if without is not None:
        files = [file for file in files if without.resolve() not in file.resolve().parents]
    chosen = [file for file in files if not suffixes or file.suffix in suffixes]
    return digest_of("\n".join(f"{f.relative_to(path)} {digest_of(f.read_bytes())}" for f in chosen))


def digest_of(content: str | bytes) -> str:
    """BLAKE2 digest of 16 bytes, in hexadecimal."""
    return hashlib.blake2b(content if isinstance(content, bytes) else content.encode(), digest_size=16).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute the numbers."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def to_json(value: Any) -> Any:
    """Convert a setting to JSON values; values without a JSON form become text."""
    if isinstance(value, Mapping):
        return {str(key): to_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
