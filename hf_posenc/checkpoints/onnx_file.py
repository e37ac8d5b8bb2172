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
from hf_posenc.checkpoints.merge import logits_of
from hf_posenc.checkpoints.native_parameters import INSTEAD
from hf_posenc.checkpoints.other_class import LIMITS, LONGEST
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.core.files.paths import folder_to_write
from hf_posenc.core.files.staged import staged
from hf_posenc.errors import MissingPackage, NotExpressible, NotTraceable, PosEncError
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.state import describe

TRACED = (2, 29)  # two rows, as a dimension of one would be fixed
ROUNDINGS = 10  # what onnxruntime may differ by, where that is more: so many times the model's own rounding


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
        import transformers.exporters  # noqa: F401  # nor does an older release have it
    except ImportError as error:
        raise MissingPackage(
            f"{error}. Install what writes ONNX: pip install onnx onnxscript onnxruntime 'transformers>=5.23'"
        ) from error
    target, training = describe(model).target_length, model.training
    lengths = [min(n, LONGEST) for n in (7, target // 2 + 1, target)]
    if hasattr(model, "peft_config") or model.config.is_encoder_decoder:
        raise NotExpressible(
            f"This {type(model).__name__} has a PEFT adapter, or an encoder and a decoder, which are no single graph. "
            "Merge an adapter first: call merge_and_unload(), and pass what it returns."
        )
    states = {"quantised": is_quantised(model), "offloaded by accelerate": offloads_of(model)}
    state = next((name for name, true in states.items() if true), f"in {model.dtype}")
    if state != f"in {torch.float32}":
        raise NotExpressible(
            f"This {type(model).__name__} is {state}. Load it in float32 on one device, without quantization_config."
        )
    model.eval()
    try:
        with staged(folder_to_write(folder)) as staging:
            graph, cached, reason = traced(model)
            graph.config = None
            graph.save_pretrained(staging)
            session = onnxruntime.InferenceSession(staging / "model.onnx", providers=["CPUExecutionProvider"])
            deviation = max(deviation_of(model, session, length, cached) for length in lengths)
    except NotTraceable as error:
        raise NotExpressible(str(error)) from error
    except torch.onnx.OnnxExporterError as error:
        reason = reason_of(error.__cause__ or error)  # type: ignore[arg-type]
        raise NotExpressible(f"torch cannot write this {type(model).__name__} as ONNX: {reason}. {INSTEAD}") from error
    finally:
        model.train(training)
    return {"cache": cached, "reason": reason, "deviation": deviation, "lengths": lengths}


def traced(model: Any) -> tuple[Any, bool, str]:
    """The graph of a model, whether it continues a cache, and why this package refused the cache of one that has it."""
    from transformers import GenerationConfig
    from transformers.exporters import OnnxConfig, OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    ids, reason = torch.ones(TRACED, dtype=torch.long, device=model.device), ""
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.can_generate():
        asked = {"generation_config": GenerationConfig(pad_token_id=0), "multi_token_decode": True}
        try:
            step = decompose_for_generation(copy.copy(model), inputs, **asked)["decode"]
            return OnnxExporter().export(*step, OnnxConfig(dynamic=True)), True, ""
        except RuntimeError as error:
            refused = error if isinstance(error, PosEncError) else error.__cause__
            if not isinstance(refused, PosEncError):
                raise
            inputs, reason = inputs | {"use_cache": False}, str(refused)
    return OnnxExporter().export(copy.copy(model), inputs, OnnxConfig(dynamic=True)), False, reason


def deviation_of(model: Any, session: Any, length: int, cached: bool) -> float:
    """The largest difference of onnxruntime's outputs for a text, read in three pieces where there is a cache.

    Raises:
        NotExpressible: it is more than rounding in float32 explains.
    """
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length))
    want = logits_of(model, ids.to(model.device)).cpu()
    got = computed(session, ids, (length // 2, length - 1, length) if cached else (length,))
    difference = (got - want).abs().max().item()
    if not difference <= LIMITS[torch.float32] * want.std():
        exact = logits_of(copy.deepcopy(model).double(), ids.to(model.device)).cpu()
        if not difference <= ROUNDINGS * (want - exact).abs().max():
            raise NotExpressible(
                f"onnxruntime computes other outputs for {length:,} tokens, {difference:.1e} away. {INSTEAD}"
            )
    return difference


def computed(session: Any, ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """What onnxruntime computes of a text ``[1, token]``, in pieces that end there and hand their cache on."""
    inputs, start, outputs = session.get_inputs(), 0, []
    held = {one.name: empty(one.shape, one.type) for one in inputs if one.name.startswith("input.")}
    for end in ends:
        given = {"input_ids": ids[:, start:end], "position_ids": torch.arange(start, end)[None]}
        given["attention_mask"] = torch.ones(1, end, dtype=torch.long)
        arrays = {one.name: given[one.name].numpy() for one in inputs if one.name in given}
        first, *cache = session.run(None, arrays | held)
        outputs.append(torch.from_numpy(first))
        held, start = dict(zip(held, cache, strict=bool(held))), end
    return torch.cat(outputs, dim=1)


def empty(shape: list[Any], kind: str) -> Any:
    """An empty part of a cache of one row; its other dynamic dimension is that of tokens."""
    sizes = [1, *(int(n) if str(n).isdigit() else 0 for n in shape[1:])][: len(shape)]
    return torch.zeros(sizes, dtype=torch.float32 if "float" in kind else torch.int64).numpy()
