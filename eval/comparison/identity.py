"""What a number depends on besides the weights: tokenizer, text, task files, options, versions, and a scheme's terms.

Digests are of contents, not of names, because a file or a checkpoint can change under the same name. The terms of a
scheme (rotation, remapped positions, mask, biases, scales) are evaluated at a few positions. Their digest covers what
the code alone does not show, such as a table read from a file or a constant set at run time. Values are rounded to
`DIGITS` significant digits: float32 has seven, and the last ones differ between processors. A value on the border of
two roundings may cost a second measurement on another machine, but never gives a stale number. Terms that depend on the
content of tokens cannot be evaluated this way; for these, the identity of the code has to suffice.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry
from hf_posenc.core.source_digest import digest_of as digest_of
from hf_posenc.core.terms import BlockBias, RowRotation, ToeplitzBias, ValueBias
from hf_posenc.eval.settings import FILES
from hf_posenc.eval.tasks.sweep import Paths, checked
from hf_posenc.schemes.base import Scheme

PACKAGES = ("hf-posenc", "torch", "transformers", "tokenizers", "lm_eval")
TASK_FILES = (".yaml", ".yml", ".py", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet")
"""Suffixes of the files in a task folder that numbers may depend on: tasks, their code and their data."""
READ_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token")
"""Special tokens that a model may read together with a text."""
to_json = partial(to_jsonable_python, fallback=str)
"""Convert a setting to JSON values; values without a JSON form become text."""


def identity_of(
    text: str, include_path: str | Path | None, options: Mapping[str, Any], without: Path
) -> dict[str, Any]:
    """Digests that are part of every key; files in ``without``, the folder of the results, are left out."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    identity: dict[str, Any] = {"versions": versions, "text": text}
    if include_path is not None:
        identity["tasks"] = files_digest(Path(include_path), TASK_FILES, without=without)
    if options:
        identity["options"] = {name: option_identity(name, value, without) for name, value in options.items()}
    return identity


def option_identity(name: str, value: Any, without: Path) -> Any:
    """Identity of one option: `FILES` by content alone; any other value that is a file, by name and content."""
    if name in FILES:
        files = {str(file): Path(file).expanduser() for file in checked(name, Paths, value)}
        return [files_digest(path, without=without) if os.path.exists(path) else file for file, path in files.items()]
    if isinstance(value, (str, Path)) and os.path.isfile(value):
        return {"name": str(value), "content": files_digest(Path(value))}
    return to_json(value)


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of the parts of a tokenizer that decide how a text is tokenised.

    Training and batching change a saved tokenizer: they add a pad token or chat markers, and store how the last batch
    was padded or truncated. The digest ignores these, because no text changes its tokens unless it spells out a marker.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    roles = {role: str(token) for role, token in tokenizer.special_tokens_map.items() if role in READ_TOKENS}
    markers = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special} - set(roles.values())
    if backend is None:
        content = [type(tokenizer).__name__, {token: i for token, i in content.items() if token not in markers}]
    else:
        content["added_tokens"] = [added for added in content["added_tokens"] if added["content"] not in markers]
        content |= {"padding": None, "truncation": None}
    return digest_of(json.dumps([content, roles], sort_keys=True))


def files_digest(path: Path, suffixes: tuple[str, ...] = (), without: Path | None = None) -> str:
    """Digest of a file, or of all files below a folder except those below the folder ``without``."""
    files = (
        sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts) if path.is_dir() else [path]
    )
    if without is not None:
        files = [file for file in files if without.resolve() not in file.resolve().parents]
    chosen = [file for file in files if not suffixes or file.suffix in suffixes]
    return digest_of("\n".join(f"{f.relative_to(path)} {digest_of(f.read_bytes())}" for f in chosen))


DIGITS = 4
NEGLIGIBLE = 1e-5
"""Share of a term's largest value below which a value counts as zero: cancellation leaves noise of this size."""


def terms_digest(schemes: Iterable[Scheme]) -> str:
    """Digest of the terms of the schemes of a model's layers; a scheme that layers share is evaluated once."""
    unique = {id(scheme): scheme for scheme in schemes}
    with torch.no_grad():
        return digest_of(json.dumps([evaluated_terms(scheme) for scheme in unique.values()]))


def evaluated_terms(scheme: Scheme) -> dict[str, Any]:
    """Terms of a scheme at `positions`, as JSON values; the error's name for a hook that needs tokens."""
    at = positions(scheme.geometry)
    call = PositionContext(at, at, scheme.geometry.causal, contiguous=False)
    hooks = {
        "rotation": scheme.rotation,
        "embed": lambda: scheme.embed(at),
        "reposition": lambda: scheme.reposition(at, training=False),
        "terms": lambda: scheme.terms(call),
    }
    terms: dict[str, Any] = {}
    for name, hook in hooks.items():
        try:
            terms[name] = term_values(hook(), at)
        except Exception as error:  # from third-party code, or from a hook that needs tokens
            terms[name] = type(error).__name__
    return terms


def positions(geometry: Geometry) -> Tensor:
    """Positions near the start, around the trained length, and up to the target length, ``[1, n]``."""
    trained, target = geometry.trained_length, geometry.target_length
    near = {0, 1, 2, 3, 7, trained // 8, trained // 4, trained // 2, trained - 1, trained, trained + 1}
    far = {(trained + target) // 2, target - 2, target - 1}
    return torch.tensor([sorted(at for at in near | far if 0 <= at < max(target, 2))])


def term_values(value: Any, at: Tensor) -> Any:
    """A term as JSON values: tensors are rounded, functions of positions are evaluated at ``at``."""
    if isinstance(value, Tensor):
        return rounded(value)
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, (tuple, list)):
        return [term_values(inner, at) for inner in value]
    if isinstance(value, RowRotation):
        lengths = value.length_of(at)
        return [rounded(lengths), *(term_values(value.rotation_of(int(n)), at) for n in lengths.unique())]
    if isinstance(value, ToeplitzBias):
        return rounded(value.of_distance(at[0, :, None] - at[0, None, :]))
    if isinstance(value, (BlockBias, ValueBias)):
        return "content"
    if is_dataclass(value):
        return {name: term_values(inner, at) for name, inner in vars(value).items()}
    if callable(value):  # such as the positions of a region
        return term_values(value(at), at)
    return value if isinstance(value, (bool, int, str, type(None))) else type(value).__name__


def rounded(values: Tensor) -> list[str]:
    """Values with `DIGITS` significant digits, as text."""
    flat = values.detach().double().cpu().flatten()
    finite = flat[flat.isfinite()].abs()
    least = NEGLIGIBLE * float(finite.max()) if len(finite) else 0.0
    return ["0" if abs(value) <= least else f"{value:.{DIGITS}g}" for value in flat.tolist()]
