"""Memory of weights, KV cache and one training step, measured on the meta device, and the memory of this machine.

Nothing is loaded or computed. A training step with LoRA is estimated from:

weights       weights of the model in its dtype, or with linear layers in 4 bits (QLoRA)
trained       16 bytes per trained parameter: value, gradient and two moments of AdamW in float32
activations   tensors that a forward pass keeps for the backward pass, counted in a pass on the meta device
loss          logits of a chunk of tokens with their gradient (`hf_posenc.training.chunked_loss`)

The estimate leaves out attention without fused kernels, other processes and fragmentation. Tests hold it within a
factor of 1.15 of the memory of a real step's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, StaticCache

from hf_posenc.core.memory import main_memory
from hf_posenc.errors import PosEncError

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme

FLOAT32 = 4
TRAINED = 4 * FLOAT32
SHORT, LONG = 64, 128
"""Lengths in tokens of the two passes in which activations are counted."""
FOUR_BIT = (4 + 0.127) / 8  # bytes per weight, quantisation constants included: QLoRA, arXiv:2305.14314, section 3
GIB = 1024**3
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True)
class Memory:
    """Memory in bytes.

    Attributes:
        dtype: dtype of weights and cache.
        weights: memory of the weights.
        cache: KV cache of one text at the target length in the unpatched model; 0 for an encoder.
        token: KV cache per token.
        ram, gpu: main memory of this machine, and memory of its largest GPU; None if unknown or absent.
    """

    dtype: str
    weights: int
    cache: int
    token: int
    ram: int | None
    gpu: int | None

    @property
    def largest(self) -> tuple[int, str] | None:
        """Memory that a model can use, and its name: that of one GPU if there is one, else main memory."""
        memories = [(self.gpu, "GPU memory"), (self.ram, "RAM")]
        return next(((count, name) for count, name in memories if count), None)


def skeleton(config: PreTrainedConfig, dtype: str | None = None) -> PreTrainedModel:
    """Build the model of a configuration on the meta device, of the class its checkpoint names."""
    named = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    classes: list[Any] = [cls for cls in named if isinstance(cls, type) and issubclass(cls, PreTrainedModel)]
    kwargs: dict[str, Any] = {} if dtype in (None, "auto") else {"dtype": dtype}
    with torch.device("meta"):
        return classes[0]._from_config(config, **kwargs) if classes else AutoModel.from_config(config, **kwargs)


def measured(model: PreTrainedModel, target: int, *, causal: bool) -> Memory:
    """Measure the memory of a model on the meta device; layers with a window cache at most the window."""
    cache = cache_bytes(model, target) if causal else 0
    return Memory(
        dtype=str(model.dtype).removeprefix("torch."),
        weights=model.get_memory_footprint(return_buffers=False),
        cache=cache,
        token=cache_bytes(model, 1) if causal else 0,
        ram=main_memory(),
        gpu=gpu_memory(),
    )


def cache_bytes(model: PreTrainedModel, length: int) -> int:
    """Return the bytes of keys and values of one text of ``length`` tokens."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = StaticCache(config, max_cache_len=length)
    cache.early_initialization(
        1, getattr(config, "num_key_value_heads", None) or heads, head_dim, model.dtype, torch.device("meta")
    )
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def kept_tokens(scheme: Scheme, target: int) -> int:
    """Return the number of tokens in a full cache under a scheme."""
    parts = scheme.kept_keys
    return target if parts is None else min(target, sum(parts))


def cache_under(scheme: Scheme, memory: Memory, target: int) -> int:
    """Return the bytes of the cache of one text under a scheme.

    A wider key takes more in proportion, a second copy of the keys half as much again, and keys and values for every
    query head a multiple.
    """
    width = 2 * scheme.geometry.head_dim  # channels of a key and its value
    cache = kept_tokens(scheme, target) * memory.token * (width // 2 + scheme.key_width) // width
    contents = {part.record.cache for part in scheme.schemes}
    if "heads" in contents:
        cache = cache * scheme.geometry.heads // scheme.geometry.kv_heads
    return cache * 3 // 2 if "copies" in contents and not scheme.caches_one_key else cache


def gpu_memory() -> int | None:
    """Return the memory of the largest CUDA device in bytes; None without one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return max((torch.cuda.get_device_properties(n).total_memory for n in range(count)), default=None)


def size(count: int) -> str:
    """Format bytes in the largest binary unit that fits: ``"512 KiB"``, ``"12.6 GiB"``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {BINARY[unit]}" if value == int(value) or value >= 100 else f"{value:.1f} {BINARY[unit]}"


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of a training step on one row, in bytes.

    Attributes:
        length: tokens of the row.
        width, words, itemsize: hidden size, vocabulary size, and bytes per number.
        numbers: number of trained parameters.
        weights, trained, activations, loss: see `hf_posenc.insight.advise.memory`.
        four_bit: weights with linear layers in 4 bits, and the largest of these layers in the dtype of the model.
        gathered: weights that a card gathers besides its shard: two layers, and weights outside layers such as
            embeddings.
        checkpointed: activations with gradient checkpointing: the inputs of all layers, and those within one layer.
    """

    length: int
    width: int
    words: int
    itemsize: int
    numbers: int
    weights: int
    four_bit: int
    gathered: int
    trained: int
    activations: int
    loss: int
    checkpointed: int

    @property
    def total(self) -> int:
        """Sum of weights, trained parameters, activations and loss."""
        return self.weights + self.trained + self.activations + self.loss

    @property
    def total_checkpointed(self) -> int:
        """The same sum with gradient checkpointing."""
        return self.weights + self.trained + self.checkpointed + self.loss

    def at(self, length: int) -> TrainingMemory:
        """Return the memory for a row of another length; activations are proportional to the length."""
        return replace(
            self,
            length=length,
            activations=self.activations * length // self.length,
            checkpointed=self.checkpointed * length // self.length,
            loss=loss_bytes(length, self.width, self.words, self.itemsize),
        )


def training_memory(model: PreTrainedModel, length: int) -> TrainingMemory | None:
    """Estimate the memory of a training step with LoRA and the defaults of `hf_posenc.training.Training`.

    Args:
        model: model on the meta device; PEFT wraps it, so do not use it afterwards.
        length: tokens of a row.

    Returns:
        The estimate; None if PEFT is not installed, or the model cannot run on the meta device.
    """
    try:
        from hf_posenc.training.config import Training
        from hf_posenc.training.methods import adapted, peft_config_of
        from hf_posenc.training.trained_layers import trained_by_kind

        weights, four_bit = model.get_memory_footprint(return_buffers=False), four_bit_bytes(model)
        trained = adapted(model, peft_config_of(model, Training(length=length, steps=1)))
        numbers = sum(trained_by_kind(trained).values())
        activations = kept_for_backward(trained, length)
    except (ImportError, PosEncError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    config = model.config.get_text_config()
    layers, width = int(config.num_hidden_layers), int(config.hidden_size)
    return TrainingMemory(
        length=length,
        width=width,
        words=int(config.vocab_size),
        itemsize=model.dtype.itemsize,
        numbers=numbers,
        weights=weights,
        four_bit=four_bit,
        gathered=gathered_bytes(model, weights, layers),
        trained=TRAINED * numbers,
        activations=activations,
        loss=loss_bytes(length, width, int(config.vocab_size), model.dtype.itemsize),
        checkpointed=activations // layers + layers * length * width * model.dtype.itemsize,
    )


def four_bit_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights with linear layers in 4 bits, except the output layer, plus the largest unpacked."""
    from hf_posenc.training.trained_layers import is_linear

    output: Any = model.get_output_embeddings()
    linear = [module.weight for module in model.modules() if is_linear(module) and module is not output]
    packed = sum(weight.numel() for weight in linear) * FOUR_BIT - sum(weight.nbytes for weight in linear)
    return model.get_memory_footprint(return_buffers=False) + round(packed) + max(w.nbytes for w in linear)


def gathered_bytes(model: Any, weights: int, layers: int) -> int:
    """Return the bytes of two layers, of the embeddings and of the output layer."""
    whole = (model.get_input_embeddings(), model.get_output_embeddings())
    outside = {weight: weight.nbytes for module in whole if module is not None for weight in module.parameters()}
    return sum(outside.values()) + 2 * (weights - sum(outside.values())) // layers


def loss_bytes(length: int, width: int, words: int, itemsize: int) -> int:
    """Return the bytes of the logits of one chunk, and of the gradient of all hidden states."""
    from hf_posenc.training.chunked_loss import FEWEST

    chunk = min(length, max(FEWEST, length * width // words))
    logits = FLOAT32 + 2 * itemsize  # bytes per logit: in the dtype of the model, in float32, and rounded again
    return logits * chunk * words + itemsize * length * width


def kept_for_backward(model: Any, length: int) -> int:
    """Return the bytes that a forward pass over ``length`` tokens keeps, without the attention matrix.

    Two short passes give the coefficients of a L + b L². The term b L² is the attention matrix, which fused kernels do
    not store.
    """
    short, long = saved_bytes(model, SHORT) / SHORT, saved_bytes(model, LONG) / LONG
    square = (long - short) / (LONG - SHORT)
    return max(0, round((short - square * SHORT) * length))


def saved_bytes(model: Any, length: int) -> int:
    """Return the bytes of tensors that a forward pass over one row saves; without parameters, shared storage once."""
    saved: dict[int, tuple[int, Tensor]] = {}
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = storage.nbytes(), tensor
        return tensor

    ids = torch.zeros((1, length), dtype=torch.long, device="meta")
    # A mask of four axes is used as it is: no values are read.
    mask = torch.zeros((1, 1, length, length), dtype=torch.bool, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.train()(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
    del output
    return sum(size for size, _ in saved.values())
