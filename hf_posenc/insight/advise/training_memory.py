"""Memory of one training step, estimated on the meta device: nothing is loaded or computed.

weights       of the model, in its dtype
trained       16 bytes a trained number: itself, its gradient and two moments of AdamW, in float32; 12 for
              weights of the model itself that are float32 already
activations   what a forward pass keeps for the backward pass, per token: counted by running it without values
loss          the logits of a chunk of tokens with their gradient (`hf_posenc.training.chunked_loss`)

Attention without fused kernels, other processes and fragmentation come on top; tests hold the estimate within a factor
of 1.25 of what the tensors of a real step take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_posenc.errors import PosEncError

if TYPE_CHECKING:
    from hf_posenc.training.config import MethodName

FLOAT32 = 4
TRAINED = 4 * FLOAT32
SHORT, LONG = 64, 128
"""Tokens of the two passes that are counted."""
LOGITS = 3  # of a chunk that exist at once: in the dtype of the model, as float32, and rounded again


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of a training step on one row.

    Attributes:
        method: the training method.
        numbers: how many are trained.
        weights, trained, activations, loss: see `hf_posenc.insight.advise.training_memory`.
        checkpointed: activations with gradient checkpointing: the input of every layer, and one layer's own.
    """

    method: str
    numbers: int
    weights: int
    trained: int
    activations: int
    loss: int
    checkpointed: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.trained + self.activations + self.loss

    @property
    def total_checkpointed(self) -> int:
        """All of it with gradient checkpointing."""
        return self.weights + self.trained + self.checkpointed + self.loss


def training_memory(
    model: PreTrainedModel, length: int, *, method: MethodName = "lora", rank: int = 16, train_embeddings: bool = True
) -> TrainingMemory | None:
    """Memory of a training step of a model on the meta device, which PEFT is put around.

    Args:
        model: without values; it must not be used afterwards.
        length: tokens of a row.
        method, rank, train_embeddings: as `hf_posenc.training.Training` takes them.

    Returns:
        The estimate; None where PEFT is not installed, or the model cannot be run without values.
    """
    try:
        from hf_posenc.checkpoints.peft import get_peft_model
        from hf_posenc.training.config import Training
        from hf_posenc.training.methods import method_of, peft_config_of
        from hf_posenc.training.trained_layers import trained_by_kind

        weights = model.get_memory_footprint(return_buffers=False)
        training = Training(length=length, steps=1, method=method, rank=rank, train_embeddings=train_embeddings)
        added = peft_config_of(method_of(method, model, rank=rank), model, training)
        trained: Any = model if added is None else get_peft_model(model, added)
        numbers = sum(trained_by_kind(trained).values())
        activations = kept_for_backward(trained, length)
    except (ImportError, PosEncError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    config = model.config.get_text_config()
    layers, width = int(config.num_hidden_layers), int(config.hidden_size)
    return TrainingMemory(
        method=method,
        numbers=numbers,
        weights=weights,
        trained=(TRAINED - (FLOAT32 if added is None and model.dtype == torch.float32 else 0)) * numbers,
        activations=activations,
        loss=loss_bytes(length, width, int(config.vocab_size)),
        checkpointed=activations // layers + layers * length * width * model.dtype.itemsize,
    )


def loss_bytes(length: int, width: int, words: int) -> int:
    """Logits of one chunk, and the gradient of all hidden states."""
    from hf_posenc.training.chunked_loss import FEWEST

    chunk = min(length, max(FEWEST, length * width // words))
    return (LOGITS * chunk * words + length * width) * FLOAT32


def kept_for_backward(model: Any, length: int) -> int:
    """Bytes that a forward pass over ``length`` tokens keeps, without the matrix of attention probabilities.

    Two short passes give both coefficients of a L + b L², and b L² is that matrix, which fused kernels do not hold.
    """
    short, long = saved_bytes(model, SHORT) / SHORT, saved_bytes(model, LONG) / LONG
    square = (long - short) / (LONG - SHORT)
    return max(0, round((short - square * SHORT) * length))


def saved_bytes(model: Any, length: int) -> int:
    """Bytes of all tensors that a forward pass over one row saves, parameters left out; shared memory counts once."""
    kept: dict[int, tuple[int, Tensor]] = {}
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes(), tensor
        return tensor

    ids = torch.zeros((1, length), dtype=torch.long, device="meta")
    mask = torch.zeros((1, 1, length, length), dtype=torch.bool, device="meta")  # as it is: no value is looked at
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.train()(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
    del output
    return sum(size for size, _ in kept.values())
