"""Position shuffle: permute the position ids, and measure how much the output of each head changes.

    change[h] = ‖o′_h − o_h‖ / ‖o_h‖            o: outputs of head h, over all measured rows

Token order and attention mask stay. A permutation of position ids shows the model no new positions.

total   all layers use shuffled positions, so the inputs of later layers change as well
direct  every layer gets its original hidden states, and only its attention uses shuffled positions; 0 if position
        enters through the embeddings only, as in unpatched GPT-2 and BERT

Weights and outputs are computed in blocks of rows to bound memory: a block of n rows takes ``heads · n · keys``
numbers. The engine's dense route computes them, so they are exact for every combination of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_posenc.attention.call import AttentionCall
from hf_posenc.attention.routes import dense_blocks, length_rotation
from hf_posenc.insight.probe.attention_profile import attentions_of, capture_attention, with_a_scheme
from hf_posenc.patching.layer_schemes import is_causal
from hf_posenc.patching.state import base_model_of

BLOCK = 64
HIDDEN = "hidden_states"
RowsCallback = Callable[[int, slice, Tensor, Tensor], None]
"""Called with layer, rows, attention weights ``[heads, rows, key]`` and outputs ``[heads, rows, dim]``."""


@torch.no_grad()
def outputs(
    model: nn.Module,
    ids: Tensor,
    rows: Sequence[slice],
    on_rows: RowsCallback = lambda *_: None,
    positions: Tensor | None = None,
) -> list[Tensor]:
    """Run the model and return the head outputs of some rows, ``[heads, rows, dim]`` for every layer.

    Args:
        model: causal or masked language model.
        ids: token ids, ``[1, token]``.
        rows: blocks of rows to return.
        on_rows: called with each block, its weights and its outputs.
        positions: position ids, ``[1, token]``; by default the model's own.
    """
    by_layer: dict[int, list[Tensor]] = {}

    def keep_rows(layer: int, call: AttentionCall) -> None:
        for block, weights, mixed in weights_of(call, rows):
            on_rows(layer, block, weights, mixed)
            by_layer.setdefault(layer, []).append(mixed)

    base: Any = base_model_of(model)[0]
    inputs: dict[str, Any] = {"input_ids": ids}
    if getattr(base.config, "is_decoder", True) or is_causal(model):
        inputs["use_cache"] = False
    if positions is not None:  # without a mask, transformers takes jumps in positions for packed texts
        inputs |= {"position_ids": positions, "attention_mask": torch.ones_like(ids)}
    with with_a_scheme(model), capture_attention(model, keep_rows):
        base(**inputs)
    return [torch.cat(by_layer[layer], dim=1) for layer in sorted(by_layer)]


def changes(
    model: nn.Module, ids: Tensor, rows: Sequence[slice], on_rows: RowsCallback, seed: int
) -> tuple[Tensor, Tensor]:
    """Measure the direct and total change of every head under shuffled positions, ``[layers, heads]`` each.

    ``on_rows`` is called for the unshuffled forward pass only.
    """
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(seed))[None].to(ids.device)
    recorded: dict[int, Tensor] = {}

    def keep(layer: int, states: Tensor) -> Tensor:
        recorded[layer] = states.cpu()  # all layers together do not fit on a GPU
        return states

    with with_a_scheme(model):
        with changed_inputs(model, keep):
            original = outputs(model, ids, rows, on_rows)
        with changed_inputs(model, lambda layer, states: recorded[layer].to(states.device)):
            direct = outputs(model, ids, rows, positions=order)
        total = outputs(model, ids, rows, positions=order)
    return torch.stack(list(map(change, original, direct))), torch.stack(list(map(change, original, total)))


def change(before: Tensor, after: Tensor) -> Tensor:
    """Return the relative change of outputs ``[heads, rows, dim]``, one number per head."""
    return ((after - before).norm(dim=(1, 2)) / before.norm(dim=(1, 2)).clamp(min=1e-30)).double().cpu()


@contextmanager
def changed_inputs(model: nn.Module, changed: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Pass ``changed(n, states)`` to attention layer n instead of its hidden states inside the block."""

    def hook_of(layer: int) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if HIDDEN in kwargs:
                return args, {**kwargs, HIDDEN: changed(layer, kwargs[HIDDEN])}
            return (changed(layer, args[0]), *args[1:]), kwargs

        return hook

    layers = enumerate(attentions_of(model))
    handles = [module.register_forward_pre_hook(hook_of(layer), with_kwargs=True) for layer, module in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def chosen_rows(length: int, count: int, causal: bool) -> list[slice]:
    """Choose blocks of about ``count`` rows in total, spread evenly over a text; in a decoder over its second half.

    In the second half every row sees at least half of the text, so that rows are comparable at each distance.
    """
    first = length // 2 if causal else 0
    available = length - first
    if count >= available:
        return [slice(start, min(start + BLOCK, length)) for start in range(first, length, BLOCK)]
    size = min(BLOCK, max(1, count // 4))
    number = max(1, count // size)
    stride = (available - size) / max(1, number - 1)
    starts = sorted({first + int(i * stride) for i in range(number)})
    return [slice(start, min(start + size, length)) for start in starts]


def weights_of(call: AttentionCall, rows: Sequence[slice]) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Compute attention weights and outputs for blocks of rows.

    Yields:
        The block, weights ``[heads, rows, key]`` and outputs ``[heads, rows, dim]``.
    """
    for block in rows:
        runs = runs_of(call, block)
        parts = [dense_blocks.weigh_and_mix(run, *dense_blocks.upcast(run), inner) for run, inner in runs]
        mixed, weights = (torch.cat(part, dim=2)[0] for part in zip(*parts, strict=True))
        yield block, weights, mixed


def runs_of(call: AttentionCall, block: slice) -> Iterator[tuple[AttentionCall, slice]]:
    """Split a block into runs of rows with one rotation, and rotate each; usually the block is one run."""
    if call.terms.row_rotation is None:
        yield call, block
        return
    lengths = call.terms.row_rotation.length_of(call.ctx.query_positions[0, block])
    for run, length in length_rotation.runs(lengths):
        rows = slice(block.start + run.start, block.start + run.stop)
        yield length_rotation.rotated_call(call, rows, length), slice(0, rows.stop - rows.start)
