"""Schemes and patches that break one check each: the proof that the checks can fail."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_posenc.checks import Case
from hf_posenc.checks.tiny_models import TRAINED_LENGTH, sharpen
from hf_posenc.core.context import PositionContext
from hf_posenc.core.geometry import Geometry, Rotation
from hf_posenc.core.record import SchemeRecord
from hf_posenc.core.regions import Band, Region
from hf_posenc.core.terms import Terms, ToeplitzBias
from hf_posenc.core.tracing import is_traced
from hf_posenc.patches.cache.key_positions import RECORD
from hf_posenc.patching.patch import unpatch_model
from hf_posenc.patching.state import scheme_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.options import Positive
from hf_posenc.schemes.rotary.rotary import RoPE, geometric


class StaleDynamicNTK(Scheme):
    """Dynamic NTK as most code has it: the base belongs to the longest row of the call that wrote the key.

    Keys of the cache keep the base of the day they were written, and rows of a batch share one.
    """

    record = SchemeRecord("stale_dynamic_ntk")
    length = 0

    def __init__(self, geometry: Geometry, *, base: float = 10_000.0) -> None:
        super().__init__(geometry)
        self.base = base

    def terms(self, ctx: PositionContext) -> Terms:
        self.length = int(ctx.query_positions.max()) + 1
        return super().terms(ctx)

    def rotation(self) -> Rotation:
        d, factor, trained = self.geometry.head_dim, self.geometry.factor, self.geometry.trained_length
        stretch = max(1.0, factor * self.length / trained - (factor - 1))
        return Rotation(geometric(self.base * stretch ** (d / (d - 2)), d))


class BlindToPadding(RoPE):
    """Rotates keys by the column they stand in: right without padding, off by the number of pads with it."""

    record = SchemeRecord("blind_to_padding")

    def regions(self, ctx: PositionContext) -> tuple[Region, ...]:
        return (Region(key_at=self.column),)

    @staticmethod
    def column(positions: Tensor) -> Tensor:
        columns = torch.arange(positions.shape[-1], device=positions.device)[None].expand_as(positions)
        return columns if positions.shape[-1] > 1 else positions


class Nothing(Scheme):
    """Says it has a bias, and adds zeros: a patch without effect."""

    record = SchemeRecord("nothing")
    replaces_host = False

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda distance: torch.zeros(heads, *distance.shape, device=distance.device))


class Poisoned(RoPE):
    """A logit scale that is no number."""

    record = SchemeRecord("poisoned")

    def logit_scale(self) -> float:
        return math.nan


class Unpatched(Case):
    """The host itself, under the name of a pair: a patch that reports success and changes nothing."""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        return model

    def length(self, wanted: int, model: Any) -> int:
        return wanted


class StockDynamic(Unpatched):
    """transformers' own dynamic NTK."""

    def __init__(self) -> None:
        super().__init__("llama", "rope", factor=4)

    def fresh(self) -> PreTrainedModel:
        config = LlamaConfig(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=128,
            vocab_size=96, max_position_embeddings=TRAINED_LENGTH,
            rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = LlamaForCausalLM(config).eval()
            sharpen(model)
            return model


class Peeking(Scheme):
    """Says that its bias is one of distance, and looks at where the text stands."""

    record = SchemeRecord("peeking")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 0.01 * float(ctx.key_positions.min() + 1)
        return ToeplitzBias(lambda distance: -steep * distance.abs().float().expand(heads, *distance.shape))


class Remembering(Scheme):
    """A slope that depends on the longest text it has ever met."""

    record = SchemeRecord("remembering")
    most = 1

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        self.most = max(self.most, ctx.key_positions.shape[1])
        heads, steep = self.geometry.heads, 9 / self.most
        return ToeplitzBias(lambda distance: -steep * distance.abs().float().expand(heads, *distance.shape))


class Silent(Scheme):
    """Takes the host's positions away, and says zero in their place."""

    record = SchemeRecord("silent")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda distance: torch.zeros(heads, *distance.shape, device=distance.device))


class Deaf(Scheme):
    """Takes an option, checks it, and forgets it."""

    record = SchemeRecord("deaf")

    def __init__(self, geometry: Geometry, *, slope: Positive = 0.1) -> None:
        super().__init__(geometry)

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads = self.geometry.heads
        return ToeplitzBias(lambda distance: -0.1 * distance.abs().float().expand(heads, *distance.shape))


class Buffered(Deaf):
    """A slope in a buffer, which a cast of the model rounds."""

    record = SchemeRecord("buffered")

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.register_buffer("slope", torch.tensor(0.1))

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, slope = self.geometry.heads, self.slope.float()
        return ToeplitzBias(lambda distance: -slope * distance.abs().float().expand(heads, *distance.shape))


class Counting(Deaf):
    """Another slope from 100 keys on."""

    record = SchemeRecord("counting")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 0.1 if ctx.key_positions.shape[1] < 100 else 0.05
        return ToeplitzBias(lambda distance: -steep * distance.abs().float().expand(heads, *distance.shape))


class Hoarding(Deaf):
    """Keeps the positions of every reading."""

    record = SchemeRecord("hoarding")
    kept: ClassVar[list[Tensor]] = []

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        self.kept.append(ctx.key_positions.clone())
        return super().bias(ctx)


class Boasting(RoPE):
    """Names a RoPE type that computes something else."""

    record = SchemeRecord("boasting")

    def native(self) -> dict[str, Any]:
        return {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}


class Moody(Deaf):
    """Steeper in training."""

    record = SchemeRecord("moody")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, steep = self.geometry.heads, 0.5 if self.training else 0.1
        return ToeplitzBias(lambda distance: -steep * distance.abs().float().expand(heads, *distance.shape))


class Grounded(Deaf):
    """Looks for its slope in the model, where it is no number while it is offloaded."""

    record = SchemeRecord("grounded", learned=True)

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slope = nn.Parameter(torch.tensor([0.5]))

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        heads, lost = self.geometry.heads, self.original.slope.is_meta
        slope = 0.0 if lost else self.slope
        return ToeplitzBias(lambda distance: -slope * distance.abs().float().expand(heads, *distance.shape))


class Reseeding(Deaf):
    """Sets everybody's seed."""

    record = SchemeRecord("reseeding")

    def bias(self, ctx: PositionContext) -> ToeplitzBias:
        torch.manual_seed(7)
        return super().bias(ctx)


class Periodic(Scheme):
    """Codes that begin again after 40 tokens: places that are said to count, and are the same again far out."""

    record = SchemeRecord("periodic")

    def embed(self, positions: Tensor) -> Tensor:
        codes = torch.linspace(0.1, 1, self.geometry.width)
        return torch.sin((positions % 40).float()[..., None] * codes)


class BlindToAdapters(Case):
    """A patch that does nothing to a model that PEFT has wrapped."""

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        return model if hasattr(model, "peft_config") else super().apply(model)


class Meddled(Case):
    """A good patch, and something done to the model, or around it, on top.

    Args:
        meddle: takes the patched model, returns what undoes it.
        pair: the good one.
    """

    def __init__(self, meddle: Callable[[PreTrainedModel], Callable[[], None]], pair: Case) -> None:
        super().__init__(pair.model, pair.scheme, **pair.options)
        self.meddle, self.undo = meddle, lambda: None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        model = super().apply(model)
        self.undo = self.meddle(model)
        return model

    @contextmanager
    def host(self) -> Iterator[PreTrainedModel]:
        try:
            with super().host() as model:
                yield model
        finally:
            self.undo()


def see_one_ahead(model: PreTrainedModel) -> Callable[[], None]:
    """An off-by-one mask: every query also sees the next key."""

    def show(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        length = kwargs["input_ids"].shape[1]
        kwargs["attention_mask"] = torch.ones(1, 1, length, length, dtype=torch.bool).tril(diagonal=1)
        return args, kwargs

    return model.base_model.register_forward_pre_hook(show, with_kwargs=True, prepend=True).remove


def leave_a_note(model: PreTrainedModel) -> Callable[[], None]:
    """An attribute that unpatching does not know of."""
    attention = model.base_model.layers[0].self_attn
    attention.note = 1
    return lambda: None


def change_the_class(model: PreTrainedModel) -> Callable[[], None]:
    """A class attribute, as global monkey patches set it."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    original = LlamaMLP.forward
    LlamaMLP.forward = lambda self, x: original(self, x)

    def undo() -> None:
        LlamaMLP.forward = original

    return undo


def drop_in(*backends: str) -> Callable[[PreTrainedModel], Callable[[], None]]:
    """A bias that some backends forget."""

    def meddle(model: PreTrainedModel) -> Callable[[], None]:
        attention = model.base_model.layers[0].self_attn
        engine = type(attention)._by_engine

        def deaf(queries: Any, key: Any, v: Any, terms: Terms, *rest: Any) -> Any:
            if attention.config._attn_implementation in backends:
                terms = Terms(visible=Band(None, 10**6))
            return engine(attention, queries, key, v, terms, *rest)

        attention.__dict__["_by_engine"] = deaf
        return lambda: None

    return meddle


def cut_the_gradient(model: PreTrainedModel) -> Callable[[], None]:
    """An engine whose backward pass forgets the queries."""
    attention = model.base_model.layers[0].self_attn
    engine = type(attention)._by_engine
    attention.__dict__["_by_engine"] = lambda queries, *rest: engine(
        attention, tuple(query.detach() for query in queries), *rest
    )
    return lambda: None


def lose_the_scale(model: PreTrainedModel) -> Callable[[], None]:
    """Values that were rounded to eighths, and stay eight times as large."""
    attention = model.base_model.layers[0].self_attn
    own = type(attention).attend
    attention.__dict__["attend"] = lambda q, k, v, **call: own(attention, q, k, (8 * v).round(), **call)
    return lambda: attention.__dict__.pop("attend", None)


def forget_where(model: PreTrainedModel) -> Callable[[], None]:
    """A caller's positions that do not arrive."""

    def drop(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, "position_ids": None}

    return model.base_model.register_forward_pre_hook(drop, with_kwargs=True, prepend=True).remove


def forget_positions(model: PreTrainedModel) -> Callable[[], None]:
    """A cache that remembers no positions: what it holds is taken to end right before the new tokens."""

    def forget(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        vars(kwargs.get("past_key_values") or module).pop(RECORD, None)
        return args, kwargs

    return model.base_model.register_forward_pre_hook(forget, with_kwargs=True, prepend=True).remove


def drop_own_mask(model: PreTrainedModel) -> Callable[[], None]:
    """A caller's mask that is forgotten as soon as there is a cache."""

    def drop(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, "attention_mask": None} if kwargs.get("past_key_values") is not None else kwargs

    return model.base_model.register_forward_pre_hook(drop, with_kwargs=True, prepend=True).remove


def round_positions(model: PreTrainedModel) -> Callable[[], None]:
    """Positions that have been bfloat16 on their way."""

    def coarse(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        places = kwargs.get("position_ids")
        return args, kwargs if places is None else {**kwargs, "position_ids": places.bfloat16().long()}

    return model.base_model.register_forward_pre_hook(coarse, with_kwargs=True, prepend=True).remove


def tilt_keys(model: PreTrainedModel) -> Callable[[], None]:
    """Keys that grow with the column they stand in."""

    def grow(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * (1 + 0.05 * torch.arange(out.shape[1]))[None, :, None]

    return model.base_model.layers[0].self_attn.k_proj.register_forward_hook(grow).remove


def read_live(model: PreTrainedModel) -> Callable[[], None]:
    """A layer that reads the configuration at every call."""
    built = model.config.max_position_embeddings

    def scaled(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * (model.config.max_position_embeddings / built)

    return model.base_model.layers[0].input_layernorm.register_forward_hook(scaled).remove


def form_all_pairs(model: PreTrainedModel) -> Callable[[], None]:
    """A tensor of every pair of tokens that nobody needs."""

    def waste(module: Any, args: Any, out: Tensor) -> None:
        (out @ out.transpose(-1, -2)).sum()

    return model.base_model.norm.register_forward_hook(waste).remove


def differ_in_graphs(model: PreTrainedModel) -> Callable[[], None]:
    """A layer that computes something else where it is traced."""

    def louder(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * 1.5 if is_traced() else out

    return model.base_model.layers[0].input_layernorm.register_forward_hook(louder).remove


def impersonate(model: PreTrainedModel) -> Callable[[], None]:
    """A patched model for which an unpatched one answers."""
    model.forward = unpatch_model(copy.deepcopy(model)).forward
    return lambda: model.__dict__.pop("forward", None)


def rebase(model: PreTrainedModel) -> Callable[[], None]:
    """Frequencies that change after the patch was found to be the host's own."""
    scheme_of(model).base = 20_000.0
    return lambda: None


def fail_late(model: PreTrainedModel) -> Callable[[], None]:
    """No numbers past the trained length."""

    def spoil(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * math.nan if out.shape[1] > TRAINED_LENGTH else out

    return model.base_model.norm.register_forward_hook(spoil).remove


def share(model: PreTrainedModel) -> Callable[[], None]:
    """A deep copy that is the original."""
    model.__deepcopy__ = lambda memo: model
    return lambda: None


def save_plain(model: PreTrainedModel) -> Callable[[], None]:
    """A checkpoint that forgets the scheme."""

    def save(folder: str) -> None:
        twin = copy.deepcopy(model)
        del twin.save_pretrained
        unpatch_model(twin).save_pretrained(folder)

    model.save_pretrained = save
    return lambda: None


def detach(model: PreTrainedModel) -> Callable[[], None]:
    """A learned bias without its gradient."""
    scheme = scheme_of(model)
    bias = scheme.bias
    scheme.bias = lambda ctx: ToeplitzBias(lambda distance: bias(ctx).of_distance(distance).detach())
    return lambda: None


def recompute_differently(model: PreTrainedModel) -> Callable[[], None]:
    """A layer that gives something else when it is run within a backward pass."""

    def louder(module: Any, args: Any, out: Tensor) -> Tensor:
        return out * 1.5 if torch._C._current_graph_task_id() != -1 else out

    return model.base_model.layers[0].input_layernorm.register_forward_hook(louder).remove
