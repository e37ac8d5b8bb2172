"""Merge a PEFT adapter into the weights of its base: a checkpoint with the scheme, for which PEFT is not needed.

    W' = W + (α / r) B A                           LoRA; the others likewise, as PEFT merges them

W' is rounded to the data type of the weights, so that logits differ from those of the adapter by rounding. They are
compared wherever an adapter is merged; what `merge` reads back from the disk must be the merged model bit for bit.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_posenc.checkpoints.held_out_texts import copy_held_out
from hf_posenc.checkpoints.hub import hub_options, with_hub_options
from hf_posenc.checkpoints.load import from_pretrained, is_quantised
from hf_posenc.checkpoints.logits import logits_of, random_text
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.plain_config import is_expressible
from hf_posenc.checkpoints.tokenizer import tokenizer_found
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.files.paths import check_disk_space, folder_to_write, nearest_existing
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import FolderUnusable, MergeFailed, NotExpressible, PeftAdapterMismatch, shown
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.report import PatchReport
from hf_posenc.patching.state import describe, is_patched
from hf_posenc.patching.text_limits import raise_limits_in


@dataclass(frozen=True)
class Merged:
    """What `merge` wrote.

    Attributes:
        folder: the folder of the new checkpoint.
        scheme: its scheme; None if the adapter was trained without one.
        deviation: root-mean-square difference of logits from those of the adapter, over their standard deviation.
        tokenizer: whether a tokenizer was found with the adapter or its base, and copied.
        expressible: whether `hf_posenc.export` can write it for plain transformers.
    """

    folder: Path
    scheme: str | None
    deviation: float
    tokenizer: bool
    expressible: bool


def merge(
    adapter: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    **hf_kwargs: Any,
) -> Merged:
    """Write an adapter and its base as one checkpoint, with the scheme the adapter was trained under.

    Args:
        adapter: name of the PEFT adapter, or of the folder of a run of `hf_posenc.training.finetune`.
        folder: where the checkpoint goes; new or empty.
        base: name of the base model; by default the one that the adapter names.
        **hf_kwargs: of ``from_pretrained``, such as ``dtype``; a ``revision`` is that of the base, if one is given, and
            else of the adapter.

    Returns:
        What was written, and how far its logits are from those of the adapter.

    Raises:
        PeftAdapterMismatch: there is no adapter, or it does not fit its base.
        NotExpressible: adapters of this kind cannot be merged (prompts, prefixes), or the base is quantised.
        MergeFailed: the logits of the merged model, or of what was read back, are others.
        FolderUnusable: the folder is a file, or is not empty.
        NoDiskSpace: the disk has less free space than the checkpoint takes.
    """
    name, on_top = (adapter, None) if base is None else (base, adapter)
    named = ModelName.of(name, adapter=on_top, hub=hub_options(hf_kwargs))
    if named.adapter is None:
        raise PeftAdapterMismatch(
            f"{shown(named.model)} is a model without a PEFT adapter, and there is nothing to merge. Name the folder "
            "of the adapter."
        )
    target = empty_folder(folder)
    merged, deviation = merge_adapter(from_pretrained(name, peft_adapter=on_top, **hf_kwargs))
    ids = random_text(merged)
    got = logits_of(merged, ids)
    dtype = next(weight.dtype for weight in merged.parameters() if weight.is_floating_point())
    size = sum(weight.numel() * weight.element_size() for weight in merged.parameters())
    check_disk_space(nearest_existing(target), size, "The merged weights")
    with staged(target) as staging:
        merged.save_pretrained(staging)
        scheme = describe(merged).scheme if is_patched(merged) else None
        expressible = is_expressible(merged)
        tokenizer = tokenizer_found(named)
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)
        raise_limits_in(staging, merged)
        del merged
        again = from_pretrained(staging, **{**with_hub_options(hf_kwargs, {}), "dtype": dtype}).eval()
        if not torch.equal(logits_of(again, ids), got):
            raise MergeFailed(
                f"The merged checkpoint of {shown(named.adapter)} computes other logits when it is read back. Nothing "
                "was kept; please report this."
            )
    copy_held_out(named.adapter, target)
    return Merged(target, scheme, deviation, tokenizer is not None, expressible)


def empty_folder(given: str | os.PathLike[str]) -> Path:
    """A folder that is new or empty.

    Raises:
        FolderUnusable: The folder has files in it, or a file has its name.
    """
    folder = Path(folder_to_write(given))
    if folder.exists() and any(folder.iterdir()):
        raise FolderUnusable(f"The folder {shown(str(folder))} is not empty. Choose another one.")
    return folder


def merge_adapter(model: Any) -> tuple[Any, float]:
    """Merge a model's PEFT adapter into its weights; a model without an adapter is returned unchanged.

    Returns:
        The merged model, and the root-mean-square difference of its logits from those of the adapter, over their
        standard deviation.

    Raises:
        NotExpressible: adapters of this type, such as prompts, are no change of weights, or not of these.
        MergeFailed: the merged model computes something else.
    """
    if not hasattr(model, "peft_config"):
        return model, 0.0
    kind = type(model).__name__
    if not hasattr(model, "merge_and_unload"):
        raise NotExpressible(
            f"The PEFT adapter of this {kind} cannot be merged into the weights. "
            "Use the adapter itself: hf_posenc.from_pretrained and --model take it."
        )
    if is_quantised(model):
        raise NotExpressible(
            f"The base of this {kind} is quantised, so the adapter cannot be added to its weights. Name the same model "
            "in a floating dtype as the base, without quantization_config."
        )
    text = random_text(model)
    want = logits_of(model, text)
    untie(model.base_model.model)
    try:
        merged = model.merge_and_unload()
    except (NotImplementedError, TypeError, ValueError) as error:  # PEFT's words for layers it cannot merge into
        raise NotExpressible(
            f"PEFT cannot merge the adapter of this {kind}: {reason_of(error)}. Use the adapter itself: "
            "hf_posenc.from_pretrained and --model take it."
        ) from error
    deviation = (logits_of(merged, text) - want).square().mean().sqrt().item() / (want.std().item() or 1.0)
    rounding = math.sqrt(torch.finfo(want.dtype).eps)  # half of the digits
    if not deviation <= rounding:
        raise MergeFailed(
            f"The logits of the merged model differ by {deviation:.1e} of their standard deviation from those of the "
            f"adapter; rounding explains {rounding:.1e}. Nothing was written; load the adapter with "
            "hf_posenc.from_pretrained instead."
        )
    return merged, deviation


def untie(model: Any) -> None:
    """Give the output layer weights of its own where an adapter would be merged into one of two tied layers."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    tied = model.get_input_embeddings(), model.get_output_embeddings()
    if None not in tied and tied[0].weight is tied[1].weight and any(isinstance(one, BaseTunerLayer) for one in tied):
        output = getattr(tied[1], "base_layer", tied[1])
        output.weight = nn.Parameter(output.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


def load_unpatched(name_or_path: str | os.PathLike[str], **hf_kwargs: Any) -> tuple[nn.Module, PatchReport | None]:
    """Load a model; merge its PEFT adapter into the weights, and remove its scheme.

    Args:
        name_or_path, **hf_kwargs: as `from_pretrained` takes them.

    Returns:
        The model without scheme, and the report of the scheme it was saved with; None where it had none.

    Raises:
        NotExpressible: its adapter cannot be merged.
        PosEncError: as `from_pretrained`.
    """
    model, _ = merge_adapter(from_pretrained(name_or_path, **hf_kwargs))
    if not is_patched(model):
        return model, None
    report = describe(model)
    return unpatch_model(model), report
