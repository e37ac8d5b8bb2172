"""Write a patched model as one ONNX graph, by transformers' exporter, and compare it in onnxruntime.

The graph of a causal model continues a KV cache that may be empty, so that one graph reads a text and decodes; it takes
no padding. Where a scheme's cache cannot be traced, and for encoders, it takes a whole text and its padding mask. The
folder gets no config.json: one with a scheme in it would be refused where this package is not installed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_posenc.checkpoints.logits import logits_of, random_text
from hf_posenc.checkpoints.native_parameters import INSTEAD
from hf_posenc.checkpoints.other_class import LIMITS, LONGEST
from hf_posenc.core.files.hf_errors import reason_of
from hf_posenc.errors import MissingPackage, NotExpressible, NotTraceable, PosEncError
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.state import describe

TRACED = (2, 29)  # two rows, as a dimension of one would be fixed
ROUNDINGS = 10  # what onnxruntime may differ by, where that is more: so many times the model's own rounding


def write_onnx(model: Any, staging: Path) -> dict[str, Any]:
    """Write a patched decoder or encoder in float32 as ``model.onnx``, if onnxruntime computes the same.

    Returns:
        ``cache``: whether the graph takes a KV cache; ``reason``: why it does not, although the model has one;
        ``deviation``: the largest difference of an output; ``lengths`` of the texts that were compared, in tokens.
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
    if model.config.is_encoder_decoder:
        raise NotExpressible(f"This {type(model).__name__} is an encoder and a decoder, no single graph. {INSTEAD}")
    if offloads_of(model) or model.dtype != torch.float32:
        state = "offloaded by accelerate" if offloads_of(model) else f"in {model.dtype}"
        raise NotExpressible(f"This {type(model).__name__} is {state}. Load it in float32 on one device.")
    model.eval()
    try:
        graph, cached, reason = traced(model)
        graph.config = None
        graph.save_pretrained(staging)
        session = onnxruntime.InferenceSession(staging / "model.onnx", providers=["CPUExecutionProvider"])
        deviation = max(deviation_of(model, session, length, cached) for length in lengths)
    except NotTraceable as error:
        raise NotExpressible(str(error)) from error
    except RuntimeError as error:  # of the exporter, or of what it traces
        reason = reason_of(error.__cause__ or error)  # type: ignore[arg-type]
        raise NotExpressible(f"torch cannot write this {type(model).__name__} as ONNX: {reason}. {INSTEAD}") from error
    finally:
        model.train(training)
    return {"onnx": {"cache": cached, "reason": reason, "deviation": deviation, "lengths": lengths}}


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
    ids = random_text(model, length, seed=length)
    want = logits_of(model, ids).cpu()
    got = computed(session, ids, (length // 2, length - 1, length) if cached else (length,))
    difference = (got - want).abs().max().item()
    if not difference <= LIMITS[torch.float32] * want.std():
        exact = logits_of(copy.deepcopy(model).double(), ids).cpu()
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
