"""Export a patched model for programs without this package.

Each format has a writer, which fills a staging folder. The steps that all formats share are here. A failed export
leaves nothing in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_posenc.checkpoints.gguf_file import write_gguf
from hf_posenc.checkpoints.held_out_texts import copy_held_out
from hf_posenc.checkpoints.hub import hub_options
from hf_posenc.checkpoints.load import from_pretrained, is_quantised
from hf_posenc.checkpoints.merge import merge_adapter
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.onnx_file import write_onnx
from hf_posenc.checkpoints.other_class import write_auto
from hf_posenc.checkpoints.plain_checkpoint import write_plain
from hf_posenc.checkpoints.plain_config import check_no_adapter
from hf_posenc.checkpoints.readers.compare import Reading
from hf_posenc.checkpoints.tokenizer import tokenizer_found
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import NotExpressible, NotPatched, OptionOutOfRange, UnknownOption, nearest, shown
from hf_posenc.patching.code_bundle import BUNDLE
from hf_posenc.patching.config_guard import MODELING
from hf_posenc.patching.model_card import write_found_results
from hf_posenc.patching.peft_sidecar import refuse_adapter_folder
from hf_posenc.patching.state import describe, is_patched
from hf_posenc.patching.text_limits import raise_limits_in

Format = Literal["transformers", "auto", "bundle", "gguf", "onnx"]


@dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Attributes:
        folder: folder of the export.
        written: entries that the format records. The ``rope_parameters`` for transformers, with the ``model_type`` for
            ``auto``; ``code`` for a bundle; the rotation in GGUF's terms for ``gguf``; for ``onnx``, whether it has a
            ``cache`` or the ``reason`` why not, the largest ``deviation`` of an output, and the ``lengths`` compared.
        readers: comparison of each engine with transformers, see `read_elsewhere`.
        tokenizer: whether a tokenizer was given or found.
    """

    folder: Path
    written: dict[str, Any]
    readers: list[Reading] = field(default_factory=list)
    tokenizer: bool = False


def export(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    to: Format = "transformers",
    tokenizer: Any = None,
    results: Any = None,
    **loading: Any,
) -> Exported:
    """Write a patched model for programs without this package.

    Args:
        model: a patched model, which is not changed; or a name, as for `from_pretrained`. For a name, its PEFT adapter
            is merged into the weights, and its tokenizer and record of held-out texts are copied.
        folder: folder to write to.
        to: ``"transformers"``: a plain checkpoint. ``"auto"``: the same, or another class of transformers if the
            model's own class cannot compute the scheme. A Llama may become a SmolLM 3 or a Mistral; a GPT-2 a GPT-NeoX,
            a BLOOM or a GPT-2 with a longer table. ``"bundle"``: a checkpoint of any scheme with the code it needs.
            ``"gguf"``: ``model.gguf``, for llama.cpp, of a Llama or Mistral. ``"onnx"``: ``model.onnx``, of a decoder
            or encoder in float32.
        tokenizer: tokenizer of a loaded model.
        results: results of `evaluate` or `compare`, or a file or folder of them, for the model card. By default, for a
            model given by name, the results in its folder.
        **loading: arguments of `from_pretrained`, such as ``scheme`` and ``factor``, for a model given by name.

    Returns:
        The folder and the recorded entries.

    Warns:
        OnlyWithinTrainedLength: logits are equal up to the trained length, and differ beyond.
        NotReadBefore5: transformers before 5 would ignore the scaling.
        EngineDiffers: an engine would compute other logits.
        ReadOtherwise: vLLM would accept texts of another length.
        TokenizerLeftOut: llama.cpp has no pre-tokenizer like this tokenizer's.
        LimitKept: the tokenizer cuts texts below the trained length, and still does.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: the format cannot express the scheme, the model read back has other outputs, or the model has a
            PEFT adapter or quantised weights.
        MissingPackage: the package that writes the format is not installed.
        FolderUnusable: the folder is a file, or holds a PEFT adapter.
        OptionOutOfRange: the format is unknown, or ``results`` were passed for a format without a model card.
        PosEncError: the name leads to no model.
    """
    if to not in WRITERS:
        raise OptionOutOfRange(
            f"There is no format {shown(to)}.{nearest(to, WRITERS)} Pass one of {', '.join(WRITERS)}."
        )
    if results is not None and to not in WITH_CARD:
        raise OptionOutOfRange(
            f"The results go into a model card, which to={to!r} (--to {to}) does not write. Leave one of them out."
        )
    target = Path(folder_to_write(folder))
    source = None
    if isinstance(model, (str, os.PathLike)):
        named = ModelName.of(model, adapter=loading.get("peft_adapter"), hub=hub_options(loading))
        source = named.adapter or named.model
        tokenizer = tokenizer or tokenizer_found(named)
        model, _ = merge_adapter(from_pretrained(model, **loading))
        if not is_patched(model):
            raise NotPatched(f"{shown(source)} carries no scheme, and none is named. Pass one with scheme= (--scheme).")
    elif loading:
        raise UnknownOption(
            f"{next(iter(loading))} is an option of loading, and this model is loaded already. Leave it out, or pass "
            "its name."
        )
    scheme = describe(model).scheme
    check_no_adapter(model)
    if is_quantised(model):
        raise NotExpressible(
            f"The weights of this {type(model).__name__} are quantised, which an export cannot record. Load the model "
            "in a floating dtype, without quantization_config, and export that; or save this one with save_pretrained."
        )
    if to in WITH_CARD:
        refuse_adapter_folder(target)
    with staged(target) as staging:
        if to == "gguf":  # the file contains the tokenizer
            written = write_gguf(model, staging, tokenizer)
        else:
            written = WRITERS[to](model, staging)
            if tokenizer is not None:
                tokenizer.save_pretrained(staging)
                raise_limits_in(staging, model)
            raise_limits_in(target, model, into=staging)
        if to in WITH_CARD:
            write_found_results(staging, results, source, scheme)
    if to in WITH_CARD:
        copy_held_out(source, target)
    return Exported(target, written, written.pop("readers", []), tokenizer is not None)


def write_bundle(model: Any, staging: Path) -> dict[str, Any]:
    """Write a checkpoint of any scheme, with its code, which transformers runs with ``trust_remote_code=True``."""
    model.save_pretrained(staging, code=BUNDLE)
    return {"code": f"{MODELING}.py"}


WRITERS: dict[str, Callable[..., dict[str, Any]]] = {
    "transformers": write_plain,
    "auto": write_auto,
    "bundle": write_bundle,
    "gguf": write_gguf,
    "onnx": write_onnx,
}
"""Format → function that writes a model into a folder, and returns the entries for `Exported.written`."""
WITH_CARD = ("transformers", "auto", "bundle")
