"""Text length limits of tokenizers and generation configurations, which a patch raises to its target length.

in memory   ``max_length`` of the generation configuration; the length at which a `SentenceTransformer` cuts texts
on disk     the tokenizer's limits in `FILES`, in every folder that this package writes into

A limit from the trained length up to the target would cut texts that the patched model reads, so it is raised to the
target length. A limit below the trained length was chosen on purpose and is kept. If it cuts texts, a warning says so.
A tokenizer on disk without a limit (transformers then writes 10³⁰) gets the target length.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from hf_posenc.core.files.atomic import write_json
from hf_posenc.core.files.json_file import read_object
from hf_posenc.errors import LimitKept
from hf_posenc.patching.scheme_config import SchemeConfig
from hf_posenc.patching.state import patches_in

if TYPE_CHECKING:
    from hf_posenc.patching.report import PatchReport
    from hf_posenc.patching.state import Patch

OF_GENERATION, OF_TOKENIZER, OF_SENTENCES = "max_length", "model_max_length", "max_seq_length"
FILES = {
    "tokenizer_config.json": (OF_TOKENIZER,),
    "tokenizer.json": ("truncation", "max_length"),
    "sentence_*_config.json": (OF_SENTENCES,),
}
"""Files with a limit, and the path of keys to it; the last file belongs to sentence-transformers."""
UNSTATED = 10**29  # transformers writes at least this for a tokenizer without a limit
LARGEST_FILE = 1 << 28  # bytes; tokenizer.json contains the vocabulary


def is_cut(limit: Any, lengths: PatchReport | SchemeConfig) -> bool:
    """Whether a limit would cut texts that the patched model reads, and is not below the trained length."""
    return isinstance(limit, int) and lengths.trained_length <= limit < lengths.target_length


def is_unstated(limit: Any, lengths: PatchReport | SchemeConfig) -> bool:
    """Whether a tokenizer has no limit while the patch extends the model's length."""
    longer = lengths.target_length > lengths.trained_length
    return longer and (limit is None or (isinstance(limit, int | float) and limit >= UNSTATED))


def warn_of_short(limit: Any, name: str, report: PatchReport) -> None:
    """Warn about a limit below the trained length, which is kept."""
    if report.factor > 1 and isinstance(limit, int) and 0 < limit < report.trained_length:
        warnings.warn(
            f"{name} is {limit:,}, below the trained length of {report.trained_length:,} tokens, so it was kept, and "
            f"texts are cut there. Set it to {report.target_length:,} to read longer texts.",
            LimitKept,
            stacklevel=4,
        )


def warn_of_cut(limit: Any, config: Any, where: str) -> None:
    """Warn about a tokenizer that was saved beside a patched model with its old limit, which transformers reads."""
    scheme = SchemeConfig.of_config(vars(config), where)
    if scheme is not None and is_cut(limit, scheme):
        warnings.warn(
            f"The tokenizer in {where} cuts texts at {limit:,} tokens, and the model reads {scheme.target_length:,}. "
            f"Set tokenizer.model_max_length = {scheme.target_length}, and save the tokenizer before the model.",
            LimitKept,
            stacklevel=4,
        )


def raise_limits(model: nn.Module, *, host_length: int | None = None) -> None:
    """Raise the limits inside a patched model to its target length, and record the old ones in its patch.

    A loaded model has its raised limit already. For it, pass the unpatched length, which `restore_limits` then sets.

    Warns:
        LimitKept: a limit that cuts texts is below the trained length.
    """
    patch = next(patches_in(model), None)
    if patch is None:
        return
    short_limits: dict[Any, str] = {}  # one warning a number: a `SentenceTransformer` repeats its tokenizer's limit
    for owner, name in limits_inside(model):
        limit: Any = getattr(owner, name, None)
        if host_length is not None and limit == patch.report.target_length:
            limit = host_length
        if is_cut(limit, patch.report):
            patch.limits.append((owner, name, limit, patch.report.target_length))
            setattr(owner, name, patch.report.target_length)
        elif name != OF_GENERATION:
            short_limits[limit] = f"{name} of this {type(model).__name__}"
    for limit, name in short_limits.items():
        warn_of_short(limit, name, patch.report)


def restore_limits(patch: Patch) -> None:
    """Undo `raise_limits`. A limit that the caller has changed since is kept."""
    while patch.limits:
        owner, name, before, after = patch.limits.pop()
        if getattr(owner, name, None) == after:
            setattr(owner, name, before)


def limits_inside(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Each object inside a model that has a limit, and the attribute with the limit."""
    for module in model.modules():
        if (generation := module.__dict__.get("generation_config")) is not None:
            yield generation, OF_GENERATION
        if isinstance(tokenizer := getattr(module, "tokenizer", None), PreTrainedTokenizerBase):
            yield tokenizer, OF_TOKENIZER
            yield module, OF_SENTENCES


def raise_limits_in(folder: Path, model: nn.Module, *, into: Path | None = None) -> None:
    """Raise the limits in the files of ``folder`` to the target length of the patched model that is saved there.

    Changed files are written into ``into``, by default ``folder`` itself.

    Warns:
        LimitKept: a limit is below the trained length.
    """
    patch = next(patches_in(model), None)
    if patch is None or not folder.is_dir():
        return
    for pattern, place in FILES.items():
        for file in sorted(folder.glob(pattern)):
            if into is not None and (into / file.name).exists():  # the model itself wrote it, with its raised limits
                continue
            if (content := raised_content(file, place, patch.report)) is not None:
                write_json((into or folder) / file.name, content)


def raised_content(file: Path, place: tuple[str, ...], report: PatchReport) -> dict[str, Any] | None:
    """The content of a file with its limit raised. None if the limit stays or the file is unreadable."""
    try:
        content = read_object(file, LARGEST_FILE)
    except (OSError, ValueError):  # the program that loads the file reports the error
        return None
    *outer, name = place
    holder: Any = content
    for key in outer:
        holder = holder.get(key)
    if not isinstance(holder, dict):
        return None
    limit = holder.get(name)
    if (name == OF_TOKENIZER and is_unstated(limit, report)) or is_cut(limit, report):
        holder[name] = report.target_length
        return content
    warn_of_short(limit, f"{'.'.join(place)} in {file.name}", report)
    return None
