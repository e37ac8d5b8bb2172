"""A scheme on a model: the input of every check."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.backends import cuda

from hf_posenc.checks.tiny_models import TINY_MODELS, tiny_model, tiny_template
from hf_posenc.checks.tolerances import Deviation, tolerance_of
from hf_posenc.core.plugins import imported_files
from hf_posenc.core.torch_state import evaluation_mode, fixed_seed
from hf_posenc.forward.layer import PatchedLayer
from hf_posenc.patching.layer_schemes import trained_length_of_patch
from hf_posenc.patching.patch import patch_model, scheme_set_aside
from hf_posenc.patching.state import base_model_of, is_patched, scheme_of
from hf_posenc.schemes.base import Scheme
from hf_posenc.schemes.build import positions_supported
from hf_posenc.schemes.registry import list_schemes
from hf_posenc.schemes.spec import SchemeSpec, plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PATCH_KEYWORDS = ("factor", "target_length", "trained_length", "layers")


class Case:
    """A scheme with its options on a tiny model or on a user's own model.

    Args:
        model: name of a tiny model (see `hf_posenc.checks.tiny_models`), or a loaded model, which every check restores.
        scheme: as `hf_posenc.patch_model` takes it.
        dtype: dtype of a tiny model; a loaded model keeps its own.
        asked: the user's keyword arguments, for the command that repeats a check that runs with other ``options``.
        options: keyword arguments of `hf_posenc.patch_model`.
    """

    def __init__(
        self, model: str | PreTrainedModel, scheme: SchemeSpec, *, dtype: torch.dtype = torch.float32,
        asked: Mapping[str, Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.model, self.scheme = model, scheme
        self.options = {name: value for name, value in options.items() if value is not None}
        self.asked = self.options if asked is None else asked
        self.dtype = dtype if isinstance(model, str) else next(model.parameters()).dtype
        base, adapter = self._base_and_adapter()
        config = base.config
        self.supports_sdpa, self.checkpoints_activations = base._supports_sdpa, base.supports_gradient_checkpointing
        self.trained_length = trained_length_of_patch(adapter, config, scheme, self.options)
        geometry = adapter.geometry(config, trained_length=self.trained_length, target_length=self.trained_length)
        self.geometry = geometry
        self.causal, self.table, self.rotary = geometry.causal, geometry.table, geometry.rotary
        self.rope_parameters = getattr(config, "rope_parameters", None)

    @property
    def model_name(self) -> str:
        """Name of the tiny model, or class name of a loaded model."""
        return self.model if isinstance(self.model, str) else type(self.model).__name__

    @property
    def scheme_name(self) -> str:
        """Name of the scheme as a user writes it, such as ``yarn+logn``."""
        scheme_options = {k: v for k, v in self.options.items() if k not in PATCH_KEYWORDS}
        return plan(self.scheme, scheme_options).name

    @cached_property
    def is_registered(self) -> bool:
        """Whether every part of the scheme is registered, so that its name identifies it."""
        known = {record.name for record in list_schemes()}
        return set(self.scheme_name.split("+")) <= known

    @property
    def continues_texts(self) -> bool:
        """Whether the scheme continues a text from a KV cache, which schemes that need the whole text refuse."""
        return self._traits[0]

    @property
    def is_deterministic(self) -> bool:
        """Whether different forward passes have the same positions, which are random under some schemes."""
        return self._traits[1]

    @property
    def compiles_whole(self) -> bool:
        """Whether `torch.compile` makes one graph of the patched model, and leaves no intercepted attention out."""
        return self._traits[2]

    def tolerance(self, check: str) -> float:
        """Largest deviation of a check that counts as rounding, for this case's dtype, model and scheme."""
        return tolerance_of(check, self.dtype, self.model_name, self.scheme_name)

    def deviation(self, check: str, value: float, where: str, tolerance: float | None = None) -> Deviation:
        """Wrap a measured value of this case in a `Deviation`."""
        tolerance = self.tolerance(check) if tolerance is None else tolerance
        return Deviation(check, value, tolerance, f"{self}, {where}", self._rerun_command(check))

    @contextmanager
    def unpatched(self) -> Iterator[PreTrainedModel]:
        """Yield the unpatched model in evaluation mode.

        On exit a loaded model and torch's global settings are as before, even after an exception.
        """
        model = self.fresh()
        with restore_settings(), evaluation_mode(model), scheme_set_aside(model):
            yield model

    @contextmanager
    def patched(self) -> Iterator[PreTrainedModel]:
        """Yield the patched model in evaluation mode, its learned parameters perturbed."""
        with self.unpatched() as model:
            self.apply(model)
            yield model

    def try_patch(self) -> Case:
        """Patch the model once, which raises where the scheme is not defined; return this case, its traits known."""
        with self.patched() as model:
            self._traits = traits_of(model)
        return self

    def fresh(self) -> PreTrainedModel:
        """Return a new copy of the tiny model, or the loaded model itself."""
        return tiny_model(self.model).to(self.dtype) if isinstance(self.model, str) else self.model

    def with_copied_model(self) -> Case:
        """Return this case on a deep copy of the loaded model, for checks whose changes cannot be undone."""
        case = copy.copy(self)
        case.model = copy.deepcopy(self.model)
        return case

    def apply(self, model: PreTrainedModel) -> PreTrainedModel:
        """Patch ``model`` and perturb learned parameters: a table of zeros would pass every check.

        Initial values are drawn from a fixed seed: the same case has the same numbers every time.
        """
        with fixed_seed(0):
            patch_model(model, self.scheme, **self.options)
        perturb_parameters(model)
        return model

    def clip_length(self, length: int, model: nn.Module) -> int:
        """Clip a sequence length to the number of positions of the patched model."""
        end = position_limit(model)
        return length if end is None else min(length, end)

    def clip_length_unpatched(self, length: int) -> int:
        """Clip a sequence length to the position table of the unpatched model."""
        return length if self.table is None else min(length, self.table)

    @cached_property
    def _traits(self) -> tuple[bool, bool, bool]:
        """`continues_texts`, `is_deterministic` and `compiles_whole`; a loaded model may already be patched."""
        if not isinstance(self.model, str) and is_patched(self.model):
            return traits_of(self.model)
        with self.patched() as model:
            return traits_of(model)

    def _base_and_adapter(self) -> tuple[Any, Any]:
        if isinstance(self.model, str) and self.model not in TINY_MODELS:
            raise ValueError(f"No tiny model is called {self.model!r}. There are {', '.join(TINY_MODELS)}.")
        return base_model_of(tiny_template(self.model) if isinstance(self.model, str) else self.model)

    def _rerun_command(self, check: str) -> str:
        if isinstance(self.model, str):
            options = "".join(f", {name}={value!r}" for name, value in self.options.items())
            return (
                f'python -c "from hf_posenc.checks import CHECKS, Case; '
                f"print(CHECKS['{check}'](Case('{self.model}', '{self.scheme_name}'{options})))\""
            )
        path = getattr(self.model.config, "name_or_path", "") or "MODEL"
        asked = {name: value for _, own in plan(self.scheme).parts for name, value in own.items()} | self.asked
        if "layers" in asked:  # the command line has no option for it
            options = "".join(f", {name}={value!r}" for name, value in asked.items())
            call = f"check_scheme({path!r}, {self.scheme_name!r}{options}, checks=[{check!r}])"
            return f"python -c {shlex.quote(f'from hf_posenc import check_scheme; print(*{call})')}"
        options = "".join(map(_flag, asked.items()))
        program = "".join(("hf-posenc ", *(f"--import {shlex.quote(file)} " for file in imported_files())))
        return f"{program}check --model {shlex.quote(path)} --scheme {self.scheme_name}{options} --checks {check}"

    def __str__(self) -> str:
        options = {k: v for k, v in self.options.items() if k not in PATCH_KEYWORDS}
        listed = ",".join(f"{name}={value}" for name, value in options.items())
        return f"{self.model_name}-{self.scheme_name}" + (f"({listed})" if listed else "")

    __repr__ = __str__


def _flag(option: tuple[str, Any]) -> str:
    """An option as ``hf-posenc check`` takes it, with a leading blank."""
    name, value = option
    if name in PATCH_KEYWORDS:
        return f" --{name.replace('_', '-')} {value}"
    return f" --option {shlex.quote(f'{name}={json.dumps(value)}')}"


def traits_of(model: nn.Module) -> tuple[bool, bool, bool]:
    """`Case.continues_texts`, `Case.is_deterministic` and `Case.compiles_whole` of a patched model."""
    scheme = scheme_of(model)
    whole = all(layer.compiles_whole for layer in model.modules() if isinstance(layer, PatchedLayer))
    return not scheme.needs_whole_text, not scheme.randomises, whole


def position_limit(model: nn.Module) -> int | None:
    """Number of positions a patched model accepts; None if unlimited."""
    return positions_supported(scheme_of(model))


def perturb_parameters(model: nn.Module) -> None:
    """Add seeded Gaussian noise (standard deviation 0.3) to every learned parameter of the scheme."""
    with torch.no_grad():
        for weight, noise in seeded_noise(model, "posenc."):
            weight.add_(noise, alpha=0.3)


def seeded_noise(model: nn.Module, part: str) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Parameters with ``part`` in their names, each with standard Gaussian noise of its shape, equal at every call."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if part in name:
            yield weight, torch.randn(weight.shape, generator=generator).to(weight.device, weight.dtype)


def reset_learned_parameters(model: nn.Module) -> None:
    """Reset every learned parameter of the scheme to its initial value."""
    for module in model.modules():
        if isinstance(module, Scheme):
            module.reset_parameters()


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, torch.set_default_device),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "math_sdp": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "flash_sdp": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "mem_efficient_sdp": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
}


def current_settings() -> dict[str, Any]:
    """Values of all settings, by name."""
    return {name: getter() for name, (getter, _) in SETTINGS.items()}


@contextmanager
def restore_settings() -> Iterator[None]:
    """Restore on exit every setting that was changed in the block."""
    before = current_settings()
    try:
        yield
    finally:
        for name, (getter, setter) in SETTINGS.items():
            if getter() != before[name]:
                setter(before[name])
