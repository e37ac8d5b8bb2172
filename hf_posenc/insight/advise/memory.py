"""Memory of weights, KV cache and one training step, measured on the meta device, and the memory of this machine.

Nothing is loaded or computed. A training step is estimated from:

weights       of the model, in its dtype; or with its linear layers in 4 bits (QLoRA)
trained       16 bytes a trained number: itself, its gradient and two moments of AdamW, in float32; 12 for
              weights of the model itself that are float32 already
activations   what a forward pass keeps for the backward pass, per token: counted by running it without values
loss          the logits of a chunk of tokens with their gradient (`hf_posenc.training.chunked_loss`)

Attention without fused kernels, other processes and fragmentation come on top; tests hold the estimate within a factor
of 1.15 of what the tensors of a real step take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, StaticCache

from hf_posenc.core.memory import reported_memory
from hf_posenc.errors import PosEncError

if TYPE_CHECKING:
    from hf_posenc.schemes.base import Scheme
    from hf_posenc.training.config import MethodName


FLOAT32 = 4
TRAINED = 4 * FLOAT32
SHORT, LONG = 64, 128
"""Tokens of the two passes that are counted."""
FOUR_BIT = (4 + 0.127) / 8  # bytes a number, with its share of the constants: QLoRA, arXiv:2305.14314, section 3
GIB = 1024**3
BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True)
class Memory:
    """Memory in bytes.

    Attributes:
        dtype: of weights and cache.
        weights: of the model.
        cache: of the unpatched model at the target length, for one text; 0 where it has none, as an encoder.
        token: bytes of the cache per token.
        ram, gpu: of this machine, in all: main memory, and the largest GPU's; None where unknown or absent.
    """

    dtype: str
    weights: int
    cache: int
    token: int
    ram: int | None
    gpu: int | None

    @property
    def largest(self) -> tuple[int, str] | None:
        """Memory a model would run in, and its name: that of one GPU, where there is one."""
        found = [(self.gpu, "GPU memory"), (self.ram, "RAM")]
        return next(((count, name) for count, name in found if count), None)


def skeleton(config: PreTrainedConfig, dtype: str | None = None) -> PreTrainedModel:
    """Build the model of a configuration on the meta device, of the class its checkpoint names."""
    named = [getattr(transformers, str(name), None) for name in config.architectures or ()]
    classes: list[Any] = [cls for cls in named if isinstance(cls, type) and issubclass(cls, PreTrainedModel)]
    kwargs: dict[str, Any] = {} if dtype in (None, "auto") else {"dtype": dtype}
    with torch.device("meta"):
        return classes[0]._from_config(config, **kwargs) if classes else AutoModel.from_config(config, **kwargs)


def measured(model: PreTrainedModel, target: int, *, causal: bool) -> Memory:
    """Memory of a skeleton and of its cache at ``target`` tokens; layers with a window keep no more than that."""
    cache = cache_bytes(model, target) if causal else 0
    return Memory(
        dtype=str(model.dtype).removeprefix("torch."),
        weights=model.get_memory_footprint(return_buffers=False),
        cache=cache,
        token=cache_bytes(model, 1) if causal else 0,
        ram=reported_memory(),
        gpu=gpu_memory(),
    )


def cache_bytes(model: PreTrainedModel, length: int) -> int:
    """Bytes of keys and values of one text."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = StaticCache(config, max_cache_len=length)
    cache.early_initialization(
        1, getattr(config, "num_key_value_heads", None) or heads, head_dim, model.dtype, torch.device("meta")
    )
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def kept_tokens(scheme: Scheme, target: int) -> int:
    """Tokens in a full cache under a scheme."""
    kept = scheme.kept_keys
    return target if kept is None else min(target, sum(kept))


def cache_under(scheme: Scheme, memory: Memory, target: int) -> int:
    """Bytes of the cache of one text under a scheme.

    A key kept twice takes half as much again, and a wider key in proportion; keys and values for every query head as
    often as these are more.
    """
    usual = 2 * scheme.geometry.head_dim  # of a key and its value
    share = kept_tokens(scheme, target) * memory.token * (usual // 2 + scheme.key_width) // usual
    kept = {part.record.cache for part in scheme.schemes}
    if "heads" in kept:
        share = share * scheme.geometry.heads // scheme.geometry.kv_heads
    return share * 3 // 2 if "copies" in kept and not scheme.caches_one_key else share


def gpu_memory() -> int | None:
    """Memory of the largest CUDA device in bytes."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return max((torch.cuda.get_device_properties(n).total_memory for n in range(count)), default=None)


def size(count: int) -> str:
    """Bytes in the largest binary unit of which there is at least one: ``"512 KiB"``, ``"12.6 GiB"``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {BINARY[unit]}" if value == int(value) or value >= 100 else f"{value:.1f} {BINARY[unit]}"


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of a training step on one row.

    Attributes:
        method: the training method.
        length: tokens of the row.
        width, words, itemsize: of the hidden states, of the vocabulary, and of a number in bytes.
        numbers: how many are trained.
        weights, trained, activations, loss: see `hf_posenc.insight.advise.memory`.
        four_bit: weights with the linear layers in 4 bits, and the largest of them computed from these.
        gathered: weights that a card holds besides its share, where several share them: two layers, and all that is in
            none, as embeddings are.
        checkpointed: activations with gradient checkpointing: the input of every layer, and one layer's own.
    """

    method: str
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
        """All of it."""
        return self.weights + self.trained + self.activations + self.loss

    @property
    def total_checkpointed(self) -> int:
        """All of it with gradient checkpointing."""
        return self.weights + self.trained + self.checkpointed + self.loss

    def at(self, length: int) -> TrainingMemory:
        """The same for a row of another length: what is kept is so many bytes per token."""
        return replace(
            self,
            length=length,
            activations=self.activations * length // self.length,
            checkpointed=self.checkpointed * length // self.length,
            loss=loss_bytes(length, self.width, self.words, self.itemsize),
        )


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
        from hf_posenc.training.config import Training
        from hf_posenc.training.methods import adapted, check_method, peft_config_of
        from hf_posenc.training.trained_layers import trained_by_kind

        weights, four_bit = model.get_memory_footprint(return_buffers=False), four_bit_bytes(model)
        training = Training(length=length, steps=1, method=method, rank=rank, train_embeddings=train_embeddings)
        check_method(method, model)
        added = peft_config_of(model, training)
        trained = adapted(model, added)
        numbers = sum(trained_by_kind(trained).values())
        activations = kept_for_backward(trained, length)
    except (ImportError, PosEncError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    config = model.config.get_text_config()
    layers, width = int(config.num_hidden_layers), int(config.hidden_size)
    return TrainingMemory(
        method=method,
        length=length,
        width=width,
        words=int(config.vocab_size),
        itemsize=model.dtype.itemsize,
        numbers=numbers,
        weights=weights,
        four_bit=four_bit,
        gathered=gathered_bytes(model, weights, layers),
        trained=(TRAINED - (FLOAT32 if added is None and model.dtype == torch.float32 else 0)) * numbers,
        activations=activations,
        loss=loss_bytes(length, width, int(config.vocab_size), model.dtype.itemsize),
        checkpointed=activations // layers + layers * length * width * model.dtype.itemsize,
    )


def four_bit_bytes(model: PreTrainedModel) -> int:
    """Weights with all linear layers but the output layer in 4 bits, and the largest of these as it is multiplied."""
    from hf_posenc.training.trained_layers import is_linear

    output: Any = model.get_output_embeddings()
    linear = [module.weight for module in model.modules() if is_linear(module) and module is not output]
    packed = sum(weight.numel() for weight in linear) * FOUR_BIT - sum(weight.nbytes for weight in linear)
    return model.get_memory_footprint(return_buffers=False) + round(packed) + max(w.nbytes for w in linear)


def gathered_bytes(model: Any, weights: int, layers: int) -> int:
    """Two layers, and embeddings and output layer, once more where they are trained."""
    whole = (model.get_input_embeddings(), model.get_output_embeddings())
    outside = {weight: weight.nbytes for module in whole if module is not None for weight in module.parameters()}
    return sum(outside.values()) + 2 * (weights - sum(outside.values())) // layers


def loss_bytes(length: int, width: int, words: int, itemsize: int) -> int:
    """Logits of one chunk, and the gradient of all hidden states."""
    from hf_posenc.training.chunked_loss import FEWEST

    chunk = min(length, max(FEWEST, length * width // words))
    logits = FLOAT32 + 2 * itemsize  # in the dtype of the model, as float32, and rounded again
    return logits * chunk * words + itemsize * length * width


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
