"""The patch of a loaded model: its record, its report, its scheme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedModel

from hf_posenc.errors import NotPatched, UnsupportedModel, shown
from hf_posenc.forward.current_forward import OWNER
from hf_posenc.patches.general.adapter import GeneralAdapter
from hf_posenc.patches.general.base_model import embeds_tokens, unsupported
from hf_posenc.patches.registry import adapter_failures, adapter_has_failed, adapter_of_config
from hf_posenc.patching.offloading import change_class
from hf_posenc.patching.report import PatchReport, Proof

if TYPE_CHECKING:
    from hf_posenc.core.geometry import Geometry
    from hf_posenc.patches.adapter import Adapter
    from hf_posenc.schemes.base import Scheme
    from hf_posenc.schemes.spec import Layout


STASH = "posenc_patch"  # attribute of a base model that holds its `Patch`


@dataclass
class Patch:
    """Everything that a patch needs, the changes that it made, and its report.

    Attributes:
        model: the caller's model, with its head.
        base: the base model inside ``model``, which is patched.
        adapter: adapter of the base model.
        geometry: geometry of the base model, with the lengths of the patch.
        layout: the requested scheme of each layer.
        schemes: scheme object of each layer; layers may share one object.
        report: summary of the patch; set once the patch is finished.
        entries: copy of the configuration's entries, to detect changes made after the patch.
        encoder_decoder: the encoder–decoder, if both of its stacks were patched at once.
        classes: each module whose class was changed, and its old class.
        frozen: module and name of each frozen parameter. The name, because offloading replaces the parameter object.
        unsplit_modules: each model with its old list of modules that must not be split over devices.
        configs: each module whose configuration was replaced, and the old configuration.
        in_float32: layers of PEFT adapters whose weights were converted.
        limits: owner, attribute, old value and new value of each text length limit that was moved.
    """

    model: nn.Module
    base: nn.Module
    adapter: Adapter
    geometry: Geometry
    layout: Layout
    schemes: list[Scheme]
    report: PatchReport = field(init=False)
    entries: dict[str, Any] = field(default_factory=dict)
    encoder_decoder: nn.Module | None = None
    classes: list[tuple[nn.Module, type[nn.Module]]] = field(default_factory=list)
    frozen: list[tuple[nn.Module, str]] = field(default_factory=list)
    unsplit_modules: list[tuple[nn.Module, Any]] = field(default_factory=list)
    configs: list[tuple[nn.Module, Any]] = field(default_factory=list)
    in_float32: list[nn.Module] = field(default_factory=list)
    limits: list[tuple[Any, str, int, int]] = field(default_factory=list)

    def finish(self, proof: Proof) -> None:
        """Set the report from the changes that were made and the proof of their effect."""
        base, layout, geometry, count = self.base, self.layout, self.geometry, self.geometry.layers
        kinds = [f"{kind}: {layout.plan_of(layer, count).name}" for layer, kind in enumerate(geometry.kinds)]
        self.report = PatchReport(
            scheme=layout.default.name,
            described=layout.default.described,
            model=type(base).__name__,
            trained_length=geometry.trained_length,
            target_length=geometry.target_length,
            touched=dict(Counter(type(module).__name__ for module, _ in self.classes)),
            parameters_added=sum(p.numel() for name, p in base.named_parameters() if "posenc." in name),
            parameters_frozen=sum(getattr(module, name).numel() for module, name in self.frozen),
            proof=proof,
            layers={key: plan.described for key, plan in layout.layers.items()},
            kinds=dict(Counter(kinds)),
            mixes_otherwise=geometry.mixes_otherwise,
        )


def describe(model: nn.Module) -> PatchReport:
    """The report of a patched model. For an encoder–decoder it includes the reports of both stacks.

    Raises:
        NotPatched: the model, or a stack of it, carries no scheme; or its stacks carry different ones.
    """
    stacks = stacks_of(model)
    if not stacks:
        return patch_of(base_model_of(model)[0]).report
    reports = {name: describe(stack) for name, stack in stacks.items() if is_patched(stack)}
    one_scheme = len({(report.scheme, report.target_length) for report in reports.values()}) == 1
    if not one_scheme or len(reports) < len(stacks):
        schemes = ", ".join(f"{name} {reports[name].scheme if name in reports else 'none'}" for name in stacks)
        raise NotPatched(
            f"The stacks of this {type(model).__name__} do not carry one scheme ({schemes}). "
            "In Python, pass one of them: model.get_encoder() or model.get_decoder()."
        )
    return PatchReport.of_stacks(type(outer_model(model)).__name__, reports)


def check_live(model: Any) -> None:
    """Refuse anything but a loaded model, such as the name of a model; raises `UnsupportedModel`."""
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"A loaded model is needed, got {shown(model)}. Load it with hf_posenc.from_pretrained.")


def is_patched(model: nn.Module) -> bool:
    """Whether the model carries a scheme.

    Raises:
        UnsupportedModel: the argument is not a model.
    """
    check_live(model)
    return any(True for _ in patches_in(model))


def patches_in(model: nn.Module) -> Iterator[Patch]:
    """The patches of all base models inside ``model``: of an encoder–decoder, that of the encoder first."""
    return (module.__dict__[STASH] for module in model.modules() if STASH in module.__dict__)


def patch_of(base: nn.Module) -> Patch:
    """The patch that a base model carries; raises `NotPatched` without one."""
    patch = base.__dict__.get(STASH)
    if patch is None:
        raise NotPatched("This model carries no scheme. Call patch_model(model, scheme) first.")
    return patch


def base_model_of(model: nn.Module) -> tuple[nn.Module, Adapter]:
    """The base model inside ``model``, and its adapter.

    Raises:
        UnsupportedModel: no adapter fits.
    """
    check_live(model)
    if stacks := stacks_of(model):
        classes = " and a ".join(type(stack).__name__ for stack in stacks.values())
        raise UnsupportedModel(
            f"This {type(model).__name__} holds several models that read tokens, a {classes}. "
            "In Python, pass one of them: model.get_encoder() or model.get_decoder()."
        )
    for module in model.modules():
        cls = adapter_of_config(module.config) if isinstance(module, PreTrainedModel) else None
        adapter = None if cls is None else cls()
        if adapter is not None and (base := adapter.base_model(module)) is not None:
            return base, adapter
    general = GeneralAdapter()
    if (base := general.base_model(model)) is not None:
        if adapter_has_failed(general.name):
            raise UnsupportedModel(
                f"The adapter installed for {general.name!r} models cannot be used.{adapter_failures()}"
            )
        return base, general
    reason = unsupported(model)
    raise type(reason)(f"{reason}{adapter_failures()}")


def stacks_of(model: nn.Module) -> dict[str, PreTrainedModel]:
    """The ``encoder`` and the ``decoder`` of an encoder–decoder that both read tokens. Empty for any other model.

    If the encoder reads images or sound, only the decoder is patched.
    """
    outer = outer_model(model)
    if outer is None or not getattr(outer.config, "is_encoder_decoder", False):
        return {}
    encoder, decoder = outer.get_encoder(), outer.get_decoder()
    if not (embeds_tokens(encoder) and embeds_tokens(decoder)) or outer in (encoder, decoder):
        return {}
    shares_encoder = any(encoder is module for module in decoder.modules())
    return {} if shares_encoder else {"encoder": encoder, "decoder": decoder}


def outer_model(model: nn.Module) -> PreTrainedModel | None:
    """The outermost model of transformers inside ``model``, such as the one that a PEFT model wraps."""
    inside = model.modules() if isinstance(model, nn.Module) else ()
    return next((module for module in inside if isinstance(module, PreTrainedModel)), None)


def stacks_or_model(model: nn.Module) -> list[nn.Module]:
    """The modules that get a patch of their own: the stacks of an encoder–decoder, or else the model itself."""
    return list(stacks_of(model).values()) or [model]


def scheme_holder(model: nn.Module) -> nn.Module:
    """The module whose configuration records the scheme: the encoder–decoder itself, or else the base model."""
    outer = outer_model(model) if stacks_of(model) else None
    return base_model_of(model)[0] if outer is None else outer


def scheme_of(model: nn.Module) -> Scheme:
    """The scheme object of a patched model. If layers differ, it is that of the first layer.

    Raises:
        NotPatched: the model carries no scheme.
    """
    base, _ = base_model_of(model)
    patch_of(base)
    return next(m.scheme for m in base.modules() if OWNER in m.__dict__)  # type: ignore[return-value]


@contextmanager
def unpatched_view(patch: Patch) -> Iterator[None]:
    """Run the block with the classes and configurations from before the patch, and the present weights.

    Configurations are read from ``__dict__``, because ``config`` of some patched classes returns a changed copy.
    """
    classes = [(module, type(module)) for module, _ in patch.classes]
    configs = [(module, vars(module)["config"]) for module, _ in patch.configs]
    for module, cls in reversed(patch.classes):
        change_class(module, cls)
    for module, config in patch.configs:
        vars(module)["config"] = config
    try:
        yield
    finally:
        for module, cls in classes:
            change_class(module, cls)
        for module, config in configs:
            vars(module)["config"] = config
