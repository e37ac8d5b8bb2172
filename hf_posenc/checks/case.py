"""A scheme on a model: what a check is asked of."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hf_posenc.checks.deviation import Deviation
from hf_posenc.checks.tiny_models import TINY_MODELS, tiny_model
from hf_posenc.checks.tolerances import tolerance_of
from hf_posenc.checks.torch_settings import restored
from hf_posenc.errors import (
    OptionOutOfRange,
    PosEncError,
    PositionOutOfTable,
    SchemeNotDefined,
)
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.proof import evaluation_mode
from hf_posenc.patching.state import base_model_of, is_patched, scheme_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import reach_of
from hf_posenc.schemes.registry import list_schemes
from hf_posenc.schemes.spec import SchemeSpec, plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PATCH_WORDS = ("factor", "target_length", "trained_length", "layers")


class Case:
    """A scheme on a contract model, or on a user's own.

    Args:
        model: name of a contract model (see `hf_posenc.checks.tiny_models`), or a live model; every check restores
            that.
        scheme: as `hf_posenc.patch_model` takes it.
        dtype: what a contract model is cast to.
        options: keywords of `hf_posenc.patch_model`.
    """

    def __init__(
        self, model: str | PreTrainedModel, scheme: SchemeSpec, *, dtype: torch.dtype = torch.float32, **options: Any
    ) -> None:
        self.model, self.scheme = model, scheme
        self.options = {name: value for name, value in options.items() if value is not None}
        self.dtype = dtype if isinstance(model, str) else next(model.parameters()).dtype
        config, adapter = self._config_and_adapter()
        self.trained: int = options.get("trained_length") or adapter.trained_length(config)
        geometry = adapter.geometry(config, trained_length=self.trained, target_length=self.trained)
        self.causal, self.table, self.rotary = geometry.causal, geometry.table, geometry.rotary

    @property
    def model_name(self) -> str:
        """Name of the contract model, or the class of a live one."""
        return self.model if isinstance(self.model, str) else type(self.model).__name__

    @property
    def scheme_name(self) -> str:
        """As a user writes it."""
        named = {k: v for k, v in self.options.items() if k not in PATCH_WORDS}
        return plan(self.scheme, named).name

    @cached_property
    def named(self) -> bool:
        """Whether all of the scheme is registered, so that its name says what it is."""
        known = {record.name for record in list_schemes()}
        return set(self.scheme_name.split("+")) <= known

    @cached_property
    def needs_whole_text(self) -> bool:
        """Whether a text cannot be continued from a cache."""
        return self._says("needs_whole_text")

    @cached_property
    def randomises(self) -> bool:
        """Whether positions are drawn anew in every reading."""
        return self._says("randomises")

    def limit(self, check: str) -> float:
        """The largest deviation that is rounding."""
        return tolerance_of(check, self.dtype, self.model_name, self.scheme_name)

    def gap(self, check: str, value: float, where: str, limit: float | None = None) -> Deviation:
        """A measurement of this pair."""
        return Deviation(
            check, value, self.limit(check) if limit is None else limit, f"{self}, {where}", self._repeat(check)
        )

    @contextmanager
    def host(self) -> Iterator[PreTrainedModel]:
        """The unpatched model in evaluation mode.

        Whatever happens in the block, a live model is unpatched afterwards, and torch set as it was.
        """
        model = self.fresh()
        with restored(), evaluation_mode(model):
            try:
                yield model
            finally:
                if is_patched(model):
                    unpatch_model(model)

    @contextmanager
    def patched(self) -> Iterator[PreTrainedModel]:
        """The patched model in evaluation mode, learned parameters stirred."""
        with self.host() as model:
            self.apply(model)
            yield model

    def fresh(self) -> PreTrainedModel:
        """A copy of the contract model, or the live model itself."""
        return tiny_model(self.model).to(self.dtype) if isinstance(self.model, str) else self.model

    def copied(self) -> Case:
        """The same of a copy of the live model, with which a check may do what it cannot undo."""
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        return twin

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Patch ``model`` and stir what is learned: tables of zeros obey every check."""
        patch_model(model, self.scheme, **self.options)
        perturb_parameters(model)
        return model

    def length(self, wanted: int, model: nn.Module) -> int:
        """``wanted`` tokens, or as many as the patched model can read."""
        end = position_limit(model)
        return wanted if end is None else min(wanted, end)

    def host_length(self, wanted: int) -> int:
        """``wanted`` tokens, or as many as the unpatched model can read."""
        return wanted if self.table is None else min(wanted, self.table)

    def _says(self, trait: str) -> bool:
        """What the scheme says of itself; a live model may carry it just now."""
        model = self.fresh()
        if is_patched(model):
            return getattr(scheme_of(model), trait)
        with self.patched() as model:
            return getattr(scheme_of(model), trait)

    def _config_and_adapter(self) -> tuple[Any, Any]:
        if isinstance(self.model, str) and self.model not in TINY_MODELS:
            raise ValueError(f"No contract model is called {self.model!r}. There are {', '.join(TINY_MODELS)}.")
        base, adapter = base_model_of(self.fresh())
        return base.config, adapter

    def _repeat(self, check: str) -> str:
        if isinstance(self.model, str):
            options = "".join(f", {name}={value!r}" for name, value in self.options.items())
            return (
                f'python -c "from hf_posenc.checks import LAWS, Pair; '
                f"print(LAWS['{check}'](Pair('{self.model}', '{self.scheme_name}'{options})))\""
            )
        where = getattr(self.model.config, "_name_or_path", "") or "MODEL"
        options = "".join(map(_flag, self.options.items()))
        return f"hf-posenc check --model {where} --scheme {self.scheme_name}{options} --check {check}"

    def __str__(self) -> str:
        options = {k: v for k, v in self.options.items() if k not in PATCH_WORDS}
        told = ",".join(f"{name}={value}" for name, value in options.items())
        return f"{self.model_name}-{self.scheme_name}" + (f"({told})" if told else "")

    __repr__ = __str__


def _flag(option: tuple[str, Any]) -> str:
    name, value = option
    return f" --{name} {value}" if name == "factor" else f" --option {name}={json.dumps(value)}"


def position_limit(model: nn.Module) -> int | None:
    """Number of positions a patched model can read; None where there is no end."""
    return reach_of(scheme_of(model))


def perturb_parameters(model: nn.Module) -> None:
    """Move every learned parameter of the scheme by seeded noise."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "posenc." in name:
            noise = torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)
            with torch.no_grad():
                weight.add_(noise, alpha=0.3)


def reset_learned_parameters(model: nn.Module) -> None:
    """Put every learned parameter of the scheme back to where it starts."""
    for module in model.modules():
        if isinstance(module, Scheme):
            module.reset_parameters()


def longest_case(model: str | PreTrainedModel, scheme: SchemeSpec, **options: Any) -> Case:
    """The pair at four times the trained length, or at the trained length where the scheme has an end before that.

    Raises:
        PosEncError: the scheme cannot be had on this model, in either length.
    """
    pair = Case(model, scheme, factor=4, **options)
    try:
        with pair.patched():
            return pair
    except (OptionOutOfRange, PositionOutOfTable):
        pair = Case(model, scheme, factor=1, **options)
        with pair.patched():
            return pair


def cases(*schemes: SchemeSpec) -> list[Case]:
    """Every pair of these schemes (by default all registered ones) and a contract model where the scheme is defined."""
    return [pair for pair in _attempted(*schemes) if isinstance(pair, Case)]


def refusals(*schemes: SchemeSpec) -> dict[tuple[str, str], PosEncError]:
    """``(model, scheme)`` of the other pairs, and how they were refused."""
    return {(one.model, one.scheme): one.error for one in _attempted(*schemes) if isinstance(one, Refusal)}


class Refusal:
    """A scheme that a contract model does not take."""

    def __init__(self, model: str, scheme: str, error: PosEncError) -> None:
        self.model, self.scheme, self.error = model, scheme, error


def _attempted(*schemes: SchemeSpec) -> Iterator[Case | Refusal]:
    for scheme in schemes or [record.name for record in list_schemes()]:
        for model in TINY_MODELS:
            try:
                yield longest_case(model, scheme)
            except SchemeNotDefined as error:
                yield Refusal(model, plan(scheme).name, error)
