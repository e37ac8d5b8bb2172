"""Write a patched model as one ONNX graph, by transformers' exporter, and compare it in onnxruntime.

The graph of a causal model continues a KV cache that may be empty, so that one graph reads a text and decodes; it takes
no padding. Where a scheme's cache cannot be traced, and for encoders, it takes a whole text and its padding mask. The
folder gets no config.json: one with a scheme in it would be refused where this package is not installed.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import Tensor

from hf_posenc.checkpoints.load import is_quantised
from hf_posenc.checkpoints.other_class import LIMITS, LONGEST
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import MissingPackage, NotExpressible, NotTraceable, PosEncError
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.state import describe

TRACED = (2, 29)  # two rows, as a dimension of one would be fixed


def export_onnx(model: Any, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Write a patched model as ``model.onnx``, for texts of any length, if onnxruntime computes the same.

    Args:
        model: a patched decoder or encoder in float32, without a PEFT adapter; it is not changed.
        folder: where the graph, its weights and the manifest of `transformers.exporters` go.

    Returns:
        ``cache``: whether the graph takes a KV cache; ``reason``: why it does not, although the model has one;
        ``deviation``: the largest difference of an output; ``lengths`` of the texts that were compared, in tokens.

    Raises:
        NotPatched: the model carries no scheme.
        NotExpressible: no such model, a scheme that cannot be traced, or onnxruntime computes other outputs.
        MissingPackage: onnx, onnxscript, onnxruntime or transformers 5.23 are not installed.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # the exporter imports it late
        from transformers.exporters import OnnxConfig, OnnxExporter
    except ImportError as error:
        raise MissingPackage(
            f"{error}. Install what writes ONNX: pip install onnx onnxscript onnxruntime 'transformers>=5.23'"
        ) from error
    target = describe(model).target_length
    lengths = [min(n, LONGEST) for n in (7, target // 2 + 1, target)]
    check_exportable(model)
    folder, training, cached, reason = folder_to_write(folder), model.training, bool(model.can_generate()), ""
    model.eval()
    try:
        with staged(folder) as staging:
            if cached:
                try:
                    graph = OnnxExporter().export(*inputs_of(model, cached=True), OnnxConfig(dynamic=True))
                except RuntimeError as error:
                    cached, reason = False, refusal(error)
            if not cached:
                graph = OnnxExporter().export(*inputs_of(model, cached=False), OnnxConfig(dynamic=True))
            graph.config = None
            graph.save_pretrained(staging)
            session = onnxruntime.InferenceSession(staging / "model.onnx", providers=["CPUExecutionProvider"])
            deviation = max(deviation_of(model, session, length, cached) for length in lengths)
    except NotTraceable as error:
        raise NotExpressible(str(error)) from error
    finally:
        model.train(training)
    return {"cache": cached, "reason": reason, "deviation": deviation, "lengths": lengths}


def check_exportable(model: Any) -> None:
    """Refuse models that are no single graph of the weights they hold."""
    if hasattr(model, "peft_config") or model.config.is_encoder_decoder:
        raise NotExpressible(
            f"This {type(model).__name__} has a PEFT adapter, or an encoder and a decoder, which are no single graph. "
            "Merge an adapter first: call merge_and_unload(), and pass what it returns."
        )
    if is_quantised(model) or model.dtype != torch.float32 or offloads_of(model):
        raise NotExpressible(
            f"This {type(model).__name__} is quantised, offloaded or in {model.dtype}. Load it in float32 on one "
            "device, without quantization_config."
        )


def refusal(error: RuntimeError) -> str:
    """Why this package refused a cache that is traced or filled; any other error is raised again."""
    refused = error if isinstance(error, PosEncError) else error.__cause__
    if not isinstance(refused, PosEncError):
        raise error
    return str(refused)


def inputs_of(model: Any, *, cached: bool) -> tuple[Any, dict[str, Any]]:
    """What is traced, and its inputs: several tokens that continue a cache, or a whole text with its padding mask."""
    from transformers import GenerationConfig
    from transformers.exporters.utils import decompose_for_generation

    ids = random_ids(model, *TRACED).to(model.device)
    inputs, shallow = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, copy.copy(model)
    if cached:
        asked = GenerationConfig(pad_token_id=0)
        return decompose_for_generation(shallow, inputs, generation_config=asked, multi_token_decode=True)["decode"]
    return shallow, inputs | ({"use_cache": False} if model.can_generate() else {})


def random_ids(model: Any, rows: int, length: int) -> Tensor:
    """Tokens ``[row, token]``, the same for the same length."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, model.config.vocab_size, (rows, length), generator=generator)


def deviation_of(model: Any, session: Any, length: int, cached: bool) -> float:
    """The largest difference of onnxruntime's outputs for a text, read in three pieces where there is a cache.

    Raises:
        NotExpressible: it is more than two implementations in float32 explain.
    """
    ids = random_ids(model, 1, length)
    with torch.no_grad():
        want = model(input_ids=ids.to(model.device))[0].cpu()
    got = computed(session, ids, (length // 2, length - 1, length) if cached else (length,))
    difference = (got - want).abs().max().item()
    if not difference <= LIMITS[torch.float32] * want.std():
        raise NotExpressible(
            f"onnxruntime computes other outputs for {length:,} tokens, {difference:.1e} away. Use save_pretrained "
            f"for this {type(model).__name__}."
        )
    return difference


def computed(session: Any, ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """What onnxruntime computes of a text ``[1, token]``, in pieces that end there and hand their cache on."""
    inputs = {one.name: one for one in session.get_inputs()}
    names, outputs, start = [one.name for one in session.get_outputs()], [], 0
    held = {name: empty(one.shape, one.type) for name, one in inputs.items() if name.startswith("input.")}
    for end in ends:
        given = {"input_ids": ids[:, start:end], "position_ids": torch.arange(start, end)[None]}
        given["attention_mask"] = torch.ones(1, end, dtype=torch.long)
        arrays = {name: value.numpy() for name, value in given.items() if name in inputs}
        found = dict(zip(names, session.run(None, arrays | held), strict=True))
        outputs.append(torch.from_numpy(found[names[0]]))
        held = {name: found[f"output.{name.removeprefix('input.')}"] for name in held}
        start = end
    return torch.cat(outputs, dim=1)


def empty(shape: list[Any], kind: str) -> Any:
    """An empty part of a cache of one row; its other dynamic dimension is that of tokens."""
    dtype = torch.float32 if "float" in kind else torch.int64
    return torch.empty(1, *(int(n) if str(n).isdigit() else 0 for n in shape[1:]), dtype=dtype).numpy()
