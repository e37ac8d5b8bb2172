"""Write a patched model as one ONNX graph with transformers' exporter, and check it in onnxruntime.

The graph of a causal model continues a KV cache, which may be empty. So one graph reads a prompt and decodes; it does
not support padding. For encoders, and for schemes whose cache cannot be traced, the graph reads a whole text and its
padding mask. The folder gets no config.json, because programs without this package would refuse one with a scheme.
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
from hf_posenc.core.torch_state import evaluation_mode
from hf_posenc.errors import MissingPackage, NotExpressible, NotTraceable, PosEncError
from hf_posenc.patching.offloading import offloads_of
from hf_posenc.patching.state import describe

TRACED = (2, 29)  # rows and tokens: two rows, because tracing fixes a dimension of one
ROUNDINGS = 10  # onnxruntime may also differ by this many times the model's own rounding error


def write_onnx(model: Any, staging: Path) -> dict[str, Any]:
    """Write a patched decoder or encoder in float32 as ``model.onnx``, if onnxruntime has the same outputs.

    Returns:
        ``cache``: whether the graph has a KV cache; ``reason``: why it has none, although the model has one;
        ``deviation``: largest difference of an output; ``lengths``: lengths of the compared texts, in tokens.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # the exporter imports it late
        import transformers.exporters  # noqa: F401  # missing in older releases
    except ImportError as error:
        raise MissingPackage(
            f"{error}. Install the ONNX exporter: pip install onnx onnxscript onnxruntime 'transformers>=5.23'"
        ) from error
    target = describe(model).target_length
    lengths = [min(n, LONGEST) for n in (7, target // 2 + 1, target)]
    if model.config.is_encoder_decoder:
        raise NotExpressible(f"This {type(model).__name__} is an encoder and a decoder, not one graph. {INSTEAD}")
    if offloads_of(model) or model.dtype != torch.float32:
        state = "offloaded by accelerate" if offloads_of(model) else f"in {model.dtype}"
        raise NotExpressible(f"This {type(model).__name__} is {state}. Load it in float32 on one device.")
    try:
        with evaluation_mode(model):
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
    return {"onnx": {"cache": cached, "reason": reason, "deviation": deviation, "lengths": lengths}}


def traced(model: Any) -> tuple[Any, bool, str]:
    """The graph of a model, whether it has a KV cache, and the error of this package that made a cache impossible."""
    from transformers import GenerationConfig
    from transformers.exporters import OnnxConfig, OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    ids, reason = torch.ones(TRACED, dtype=torch.long, device=model.device), ""
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.can_generate():
        generation = {"generation_config": GenerationConfig(pad_token_id=0), "multi_token_decode": True}
        try:
            step = decompose_for_generation(copy.copy(model), inputs, **generation)["decode"]
            return OnnxExporter().export(*step, OnnxConfig(dynamic=True)), True, ""
        except RuntimeError as error:
            refusal = error if isinstance(error, PosEncError) else error.__cause__
            if not isinstance(refusal, PosEncError):
                raise
            inputs, reason = inputs | {"use_cache": False}, str(refusal)
    return OnnxExporter().export(copy.copy(model), inputs, OnnxConfig(dynamic=True)), False, reason


def deviation_of(model: Any, session: Any, length: int, cached: bool) -> float:
    """The largest difference of onnxruntime's outputs for a text, which is read in three pieces if there is a cache.

    Raises:
        NotExpressible: the difference is larger than rounding in float32 explains.
    """
    ids = random_text(model, length, seed=length)
    expected = logits_of(model, ids).cpu()
    outputs = onnx_outputs(session, ids, (length // 2, length - 1, length) if cached else (length,))
    difference = (outputs - expected).abs().max().item()
    if not difference <= LIMITS[torch.float32] * expected.std():
        exact = logits_of(copy.deepcopy(model).double(), ids).cpu()
        if not difference <= ROUNDINGS * (expected - exact).abs().max():
            raise NotExpressible(
                f"onnxruntime computes other outputs for {length:,} tokens, {difference:.1e} away. {INSTEAD}"
            )
    return difference


def onnx_outputs(session: Any, ids: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Outputs of onnxruntime for a text ``[1, token]``, read in pieces that end at ``ends`` and continue the cache."""
    inputs, start, outputs = session.get_inputs(), 0, []
    cache = {one.name: empty_cache(one.shape, one.type) for one in inputs if one.name.startswith("input.")}
    for end in ends:
        tensors = {"input_ids": ids[:, start:end], "position_ids": torch.arange(start, end)[None]}
        tensors["attention_mask"] = torch.ones(1, end, dtype=torch.long)
        arrays = {one.name: tensors[one.name].numpy() for one in inputs if one.name in tensors}
        first, *new_cache = session.run(None, arrays | cache)
        outputs.append(torch.from_numpy(first))
        cache, start = dict(zip(cache, new_cache, strict=bool(cache))), end
    return torch.cat(outputs, dim=1)


def empty_cache(shape: list[Any], kind: str) -> Any:
    """An empty part of the cache of one row. Its other dynamic dimension is the number of tokens."""
    sizes = [int(n) if str(n).isdigit() else 0 for n in shape]
    if sizes:
        sizes[0] = 1
    return torch.zeros(sizes, dtype=torch.float32 if "float" in kind else torch.int64).numpy()
