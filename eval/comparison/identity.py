"""What a number depends on besides the scheme and the weights: tokenizer, text, task files, options and versions.

Digests of contents, not names: a file or a checkpoint can change under the same name.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hf_posenc.core.source_digest import digest_of as digest_of
from hf_posenc.eval.tasks.sweep import Paths, checked

PACKAGES = ("hf-posenc", "torch", "transformers", "tokenizers", "lm_eval")
TASK_FILES = (".yaml", ".yml", ".py", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet")
"""Endings of the files in a folder of tasks that numbers may depend on: tasks, their code and their data."""
PATHS = ("data", "docs")
"""Options that name files and folders; the key of a cell has their content, wherever it lies."""
READ = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""The special tokens that a model reads with a text."""


def identity_of(
    text: str, include_path: str | Path | None, options: Mapping[str, Any], without: Path
) -> dict[str, Any]:
    """What every number of a comparison depends on, besides its own cell.

    Args:
        text: digest of the measured text.
        include_path: folder of further task files.
        options: further options of tasks.
        without: folder of the results, whose files are left out.
    """
    identity: dict[str, Any] = {"versions": versions(), "text": text}
    if include_path is not None:
        identity["tasks"] = files_digest(Path(include_path), TASK_FILES, without=without)
    if options:
        identity["options"] = {name: identified(name, value, without) for name, value in options.items()}
    return identity


def identified(name: str, value: Any, without: Path) -> Any:
    """One option: files of `PATHS` by content alone; any other value that is a file, by name and content."""
    if name in PATHS:
        files = {str(one): Path(one).expanduser() for one in checked(name, Paths, value)}
        return [files_digest(path, without=without) if os.path.exists(path) else one for one, path in files.items()]
    if isinstance(value, (str, Path)) and os.path.isfile(value):
        return {"name": str(value), "content": files_digest(Path(value))}
    return to_json(value)


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


def files_digest(path: Path, suffixes: tuple[str, ...] = (), without: Path | None = None) -> str:
    """Digest of a file, or of all files below a folder, less those below the folder ``without``."""
    files = (
        sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts) if path.is_dir() else [path]
    )
    if without is not None:
        files = [file for file in files if without.resolve() not in file.resolve().parents]
    chosen = [file for file in files if not suffixes or file.suffix in suffixes]
    return digest_of("\n".join(f"{f.relative_to(path)} {digest_of(f.read_bytes())}" for f in chosen))


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
