"""Merge a PEFT adapter into the weights of its base. The new checkpoint has the scheme and does not need PEFT.

    W' = W + (α / r) B A                           LoRA; PEFT defines the formulas of other adapters

W' is rounded to the data type of the weights, so the logits differ from those of the adapter by rounding. Every merge
compares them. `merge` also reads the checkpoint back: its weights and configuration must be those of the merged model.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.checkpoints.held_out_texts import copy_held_out
from hf_posenc.checkpoints.hub import hub_options, with_hub_options
from hf_posenc.checkpoints.load import from_pretrained, is_quantised
from hf_posenc.checkpoints.logits import logits_of, random_text
from hf_posenc.checkpoints.model_digest import model_digest
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.plain_config import is_expressible
from hf_posenc.checkpoints.tokenizer import tokenizer_found
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.files.paths import check_disk_space, folder_to_write, nearest_existing
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import FolderUnusable, MergeFailed, NotExpressible, PeftAdapterMismatch, shown
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import describe, is_patched
from hf_posenc.patching.text_limits import raise_limits_in


@dataclass(frozen=True)
class Merged:
    """The result of `merge`.

    Attributes:
        folder: folder of the new checkpoint.
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
        folder: new or empty folder for the checkpoint.
        base: name of the base model; by default the one that the adapter names.
        **hf_kwargs: arguments of ``from_pretrained``, such as ``dtype``. A ``revision`` applies to ``base`` if that is
            passed, or else to the adapter.

    Returns:
        The written checkpoint, and the deviation of its logits from those of the adapter.

    Raises:
        PeftAdapterMismatch: there is no adapter, or it does not fit its base.
        NotExpressible: adapters of this kind cannot be merged (prompts, prefixes), or the base is quantised.
        MergeFailed: the merged model, or the checkpoint read back, has other logits.
        FolderUnusable: the folder is a file, or is not empty.
        NoDiskSpace: the disk has less free space than the checkpoint needs.
    """
    name, peft_adapter = (adapter, None) if base is None else (base, adapter)
    named = ModelName.of(name, adapter=peft_adapter, hub=hub_options(hf_kwargs))
    if named.adapter is None:
        raise PeftAdapterMismatch(
            f"{shown(named.model)} is a model without a PEFT adapter, and there is nothing to merge. Name the folder "
            "of the adapter."
        )
    target = empty_folder(folder)
    merged, deviation = merge_adapter(from_pretrained(name, peft_adapter=peft_adapter, **hf_kwargs))
    ids = random_text(merged)
    logits = logits_of(merged, ids)
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
        digest = model_digest(merged)
        del merged
        read_back = from_pretrained(staging, **{**with_hub_options(hf_kwargs, {}), "dtype": dtype}).eval()
        # Kernels may round by the addresses of tensors, so logits alone are not compared bit for bit.
        if model_digest(read_back) != digest or deviation_of(logits_of(read_back, ids), logits) > rounding_of(logits):
            raise MergeFailed(
                f"The merged checkpoint of {shown(named.adapter)} computes other logits when it is read back. Nothing "
                "was kept; please report this."
            )
    copy_held_out(named.adapter, target)
    return Merged(target, scheme, deviation, tokenizer is not None, expressible)


def empty_folder(name: str | os.PathLike[str]) -> Path:
    """The path of a folder that is new or empty.

    Raises:
        FolderUnusable: the folder is not empty, or the path is a file.
    """
    folder = Path(folder_to_write(name))
    if folder.exists() and any(folder.iterdir()):
        raise FolderUnusable(f"The folder {shown(str(folder))} is not empty. Choose another one.")
    return folder


def merge_adapter(model: Any) -> tuple[Any, float]:
    """Merge a model's PEFT adapter into its weights. A model without an adapter is returned unchanged.

    Returns:
        The merged model, and the root-mean-square difference of its logits from those of the adapter, over their
        standard deviation.

    Raises:
        NotExpressible: PEFT cannot merge adapters of this type (such as prompts), or the weights are quantised.
        MergeFailed: the logits of the merged model differ by more than rounding.
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
    adapted_logits = logits_of(model, text)
    untie(model.base_model.model)
    try:
        merged = model.merge_and_unload()
    except (NotImplementedError, TypeError, ValueError) as error:  # PEFT raises these for layers it cannot merge into
        raise NotExpressible(
            f"PEFT cannot merge the adapter of this {kind}: {reason_of(error)}. Use the adapter itself: "
            "hf_posenc.from_pretrained and --model take it."
        ) from error
    deviation, rounding = deviation_of(logits_of(merged, text), adapted_logits), rounding_of(adapted_logits)
    if deviation > rounding:
        raise MergeFailed(
            f"The logits of the merged model differ by {deviation:.1e} of their standard deviation from those of the "
            f"adapter; rounding explains {rounding:.1e}. Nothing was written; load the adapter with "
            "hf_posenc.from_pretrained instead."
        )
    return merged, deviation


def deviation_of(logits: Tensor, reference: Tensor) -> float:
    """Root-mean-square difference of logits, over the standard deviation of the reference; infinite instead of NaN."""
    deviation = (logits - reference).square().mean().sqrt().item() / (reference.std().item() or 1.0)
    return math.inf if math.isnan(deviation) else deviation


def rounding_of(logits: Tensor) -> float:
    """Largest deviation that counts as rounding: half of the digits."""
    return math.sqrt(torch.finfo(logits.dtype).eps)


def untie(model: Any) -> None:
    """Untie the output layer from the embeddings if an adapter would be merged into either."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    tied = model.get_input_embeddings(), model.get_output_embeddings()
    if None not in tied and tied[0].weight is tied[1].weight and any(isinstance(m, BaseTunerLayer) for m in tied):
        output = getattr(tied[1], "base_layer", tied[1])
        output.weight = nn.Parameter(output.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


def load_unpatched(name_or_path: str | os.PathLike[str], **hf_kwargs: Any) -> nn.Module:
    """Load a model as `from_pretrained` does, merge its PEFT adapter into the weights, and remove its scheme.

    Raises:
        NotExpressible: the adapter cannot be merged.
        PosEncError: see `from_pretrained`.
    """
    model, _ = merge_adapter(from_pretrained(name_or_path, **hf_kwargs))
    return unpatch_model(model) if is_patched(model) else model
