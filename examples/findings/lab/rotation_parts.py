"""Take the rotation from one part of the channel pairs of a trained model, and measure what it did for the model.

The pairs of a head, fastest first, are divided into equal parts. A variant is the number of the part that keeps still,
from 0 for the fastest; None leaves the model as it is. Two metrics: the loss of the last tokens with that part at rest,
and the share of Σ_m |q_m| |k_m| that the pairs of the part hold in the model as it is, over all layers, heads and
tokens. Options of the budget: ``parts``, ``samples``, ``scored``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_posenc.checkpoints.load import from_pretrained
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.core.geometry import Geometry
from hf_posenc.errors import UnsupportedModel
from hf_posenc.patching.patch import patch_model
from hf_posenc.schemes.options import NotNegativeInt, PositiveInt
from hf_posenc.schemes.rotary.rotary import RoPE
from lab.cells import Scores
from lab.finding import Job
from lab.text_windows import scored_windows, token_losses, windows_of

LOSS, NORMS = "loss with these pairs at rest", "norms of these pairs"
"""Names of the metrics."""


class RestingPart(RoPE):
    """RoPE with one of ``parts`` equal parts of its pairs at rest: ω_m = 0 for the pairs of that part."""

    def __init__(self, geometry: Geometry, *, part: NotNegativeInt = 0, parts: PositiveInt = 4) -> None:
        super().__init__(geometry)
        self.part, self.parts = part, parts

    def frequencies(self) -> tuple[float, ...]:
        """Radians per token of each pair, fastest first."""
        own = super().frequencies()
        return tuple(0.0 if self.parts * m // len(own) == self.part else w for m, w in enumerate(own))


def rotation_parts(job: Job) -> Iterator[tuple[float, Scores]]:
    """Score one part at rest, within the trained length."""
    named = ModelName.of(job.model)
    model: Any = from_pretrained(named.model, peft_adapter=named.adapter, dtype="float32")
    trained = model.config.max_position_embeddings
    windows = windows_of(job, round(max(job.axis) * trained))
    for at in job.points:
        ids = torch.tensor([window.ids[-round(at * trained) :] for window in windows])
        scores, part = {}, job.settings
        if part is not None:
            job.progress(0.0, "norms of queries and keys")
            scores[NORMS] = scored_windows(windows, norm_shares(model, ids, job.options["parts"])[:, part])
            patch_model(model, RestingPart, part=part, parts=job.options["parts"])
        job.progress(0.5, "loss")
        with torch.no_grad():
            losses = token_losses(model(input_ids=ids).logits, ids, job.options["scored"])
        yield at, {**scores, LOSS: scored_windows(windows, losses.mean(dim=1))}


@torch.no_grad()
def norm_shares(model: Any, ids: Tensor, parts: int) -> Tensor:
    """Share of each part of the pairs in Σ |q_m| |k_m| for every row of ``ids``, ``[row, part]``.

    Raises:
        UnsupportedModel: the layers have no ``q_proj`` and ``k_proj``, whose outputs are the queries and keys.
    """
    found: dict[str, list[Tensor]] = {"q_proj": [], "k_proj": []}
    head_dim = getattr(model.config, "head_dim", model.config.hidden_size // model.config.num_attention_heads)

    def keep(name: str, module: Any, inputs: Any, output: Tensor) -> None:
        first, second = output.unflatten(-1, (-1, 2, head_dim // 2)).unbind(-2)  # pairs (m, m + d / 2)
        found[name].append(torch.hypot(first, second).mean(dim=(1, 2)))  # [row, pair], over tokens and heads

    layers = {path: module for path, module in model.named_modules() if path.rpartition(".")[2] in found}
    if not layers:
        raise UnsupportedModel(f"{type(model).__name__} has no layers q_proj and k_proj. Use a model like Llama.")
    hooks = [m.register_forward_hook(partial(keep, path.rpartition(".")[2])) for path, m in layers.items()]
    try:
        model(input_ids=ids)
    finally:
        for hook in hooks:
            hook.remove()
    products = torch.stack([q * k for q, k in zip(found["q_proj"], found["k_proj"], strict=True)]).sum(dim=0)
    by_part = products.unflatten(1, (parts, -1)).sum(dim=2)
    return by_part / by_part.sum(dim=1, keepdim=True)
