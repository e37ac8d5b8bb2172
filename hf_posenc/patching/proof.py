"""Effect probe: run one attention layer without and with the patch, and compare its outputs.

Up to 64 synthetic tokens stand at positions spread over the target length. The expected effect follows from the
scheme's own values. If they equal those of the unpatched model, no output may change (verdict ``identity``). Otherwise
some outputs must change, except those of tokens that the scheme promises not to affect. Freshly initialised models
attend almost evenly and hide any scheme, so the scores are multiplied until the effect shows.

Half precision rounds away small changes of weak scores, so layers of half-precision models are run in float32 where
possible. They also run once in their own dtype, to show overflows. Quantised projections keep their own dtype.

A rotary model computes its angles in float32, and the scheme computes the same angles in float64. At position 10⁵ they
differ by hundredths of a radian. The unpatched model, run at positions moved by one unit in the last place of float32,
measures how much this difference changes the outputs.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_posenc.core.constants import HALF
from hf_posenc.core.torch_state import evaluation_mode
from hf_posenc.errors import AdapterInvalid, NoEffect
from hf_posenc.forward.current_forward import ATTENTIONS
from hf_posenc.forward.placement import scheme_on
from hf_posenc.patches.general.adapter import GeneralAdapter
from hf_posenc.patches.try_adapter import explained_forward, is_third_party
from hf_posenc.patches.validate_adapter import probed
from hf_posenc.patching.ablation import NEUTRAL, TERMS, Hooks, formula_change, has_any, neutral, random_code, replaced
from hf_posenc.patching.expected_effect import differs_from_host, shows_silent_terms, spread_positions
from hf_posenc.patching.layer_run import (
    factor_name,
    in_float32,
    perturb_positions,
    quantised_modules,
    relative_change,
    runs_in_float32,
    scaled_scores,
)
from hf_posenc.patching.offloading import computing_device, offloads_of, refuse_blocks
from hf_posenc.patching.report import Proof
from hf_posenc.patching.state import unpatched_view
from hf_posenc.schemes.base import Scheme

if TYPE_CHECKING:
    from hf_posenc.patching.state import Patch

SHARPENING = (1.0, 10.0, 100.0)
SOFTENING = (1e-3, 1e-6, 1e-9)  # for attention that puts all weight on one key, at its own scores and larger ones
# Largest relative change that counts as rounding: ten times the accumulated error of a layer in each dtype.
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
MIN_TERM_EFFECT = 1e3  # in units of the rounding: a term is checked in a layer if it changes the formula by more
# Both in units of the change that float32 angles cause in the unpatched model: mostly 0.2 to 1 on 144 models.
MIN_CHANGE, MAX_CHANGE = 2.0, 8.0  # an effect is larger than the first; unaffected tokens change less than the second


class EffectProbe:
    """Records the outputs of one layer of each kind without the patch, and compares them with those under it.

    Unpatched layers run with the classes and configurations from before the patch, which is in place already.
    """

    def __init__(self, patch: Patch) -> None:
        self.patch = patch
        self.adapter, self.base, self.geometry = adapter, base, geometry = patch.adapter, patch.base, patch.geometry
        self.layers = layers = patch.layout.representatives(geometry.layers, geometry.kinds)
        parameter = next(base.parameters())
        self.attentions: list[Any] = base.__dict__[ATTENTIONS]
        offloads = offloads_of(base)
        refuse_blocks(base, offloads)
        device = computing_device(base, offloads)
        self.deferred = device.type == "meta"
        self.runs_alone = not self.deferred and not offloads
        self.patched: dict[tuple[int, float], Tensor] = {}
        if self.deferred:
            return
        # The unpatched model must have the probed positions too, and its position table may be shorter.
        reach = min(geometry.target_length, geometry.table or geometry.target_length)
        self.positions = spread_positions(reach).to(device)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, self.positions.shape[1], geometry.width, generator=generator)
        config: Any = base.config
        self.own_dtype = parameter.dtype
        modules = [self.attentions[layer] for layer in layers]
        half = self.own_dtype in HALF and not offloads  # hooks that offload would keep the loaded weights in float32
        self.widened = half and runs_in_float32(modules, config._attn_implementation)
        self.hidden = hidden.to(device, torch.float32 if self.widened else self.own_dtype)
        self.nudged = self.positions if geometry.rotary is None else perturb_positions(self.positions, generator)
        with explained_forward(adapter, base, patched=False), evaluation_mode(base), unpatched_view(patch):
            # A patched class may have a score factor that the model's own class lacks.
            self.factors = {layer: factor_name(self.attentions[layer]) for layer in layers}
            if self.widened:
                self.run_in_own_dtype(layers[0])  # an error here is not caused by the patch
            self.unpatched = {layer: self.run_unpatched(layer, SHARPENING[0]) for layer in layers}

    def run_unpatched(self, layer: int, sharper: float) -> tuple[Tensor, Tensor]:
        """Outputs of an unpatched layer at the probed positions, and at these positions moved by float32 rounding."""
        return self.run(layer, sharper, self.positions), self.run(layer, sharper, self.nudged)

    def run(self, layer: int, sharper: float, positions: Tensor) -> Tensor:
        """Output ``[token, width]`` of a layer in float32, with its scores multiplied by ``sharper``."""
        attention = self.attentions[layer]
        widened = in_float32(attention, self.own_dtype) if self.widened else nullcontext()
        with torch.no_grad(), scaled_scores(attention, self.factors[layer], sharper), widened:
            return probed(self.adapter, self.base, self.hidden, positions, layer)[0].float()

    def run_patched(self, layer: int, sharper: float) -> Tensor:
        """Outputs of a patched layer at the probed positions; computed once for each factor of the scores."""
        if (layer, sharper) not in self.patched:
            self.patched[layer, sharper] = self.run(layer, sharper, self.positions)
        return self.patched[layer, sharper]

    def run_in_own_dtype(self, layer: int) -> Tensor:
        """Output ``[1, token, width]`` of a layer in the model's own dtype."""
        with torch.no_grad():
            return probed(self.adapter, self.base, self.hidden.to(self.own_dtype), self.positions, layer)

    def verdict(self) -> Proof:
        """Compare the recorded outputs with those of the patched layers. The patch has an effect if one layer changed.

        If the change is too small to tell, the unpatched layers run again on larger scores.
        """
        if self.deferred:
            return Proof("deferred")
        with explained_forward(self.adapter, self.base), evaluation_mode(self.base):
            if is_third_party(self.adapter):
                for layer in self.layers:
                    self.check_own_positions(layer)
            proofs = [self.verdict_of(layer) for layer in self.layers]
        moved = [proof for proof in proofs if proof.verdict == "moved"]
        if not moved:
            return max(proofs, key=lambda proof: proof.change)
        return Proof("moved", max(p.change for p in moved), min(p.unchanged_below for p in moved))

    def check_own_positions(self, layer: int) -> None:
        """Refuse another package's adapter if its geometry does not describe the model's own positions.

        The patched layer, given the positions of the geometry, must compute what the unpatched layer computed.
        """
        (before, nudged), geometry = self.unpatched[layer], self.geometry
        if self.adapter.scaled_already(self.base.config) is not None:
            return
        own = self.adapter.own_positions(self.base, geometry.of_layer(layer), layer).to(before.device)
        readers = {self.attentions[0], self.attentions[layer]}  # a position table asks the first
        schemes = [(one, one._modules.get("posenc")) for one in readers]
        try:
            for one, _ in schemes:
                one._modules["posenc"] = own
            moved = relative_change(self.run(layer, SHARPENING[0], self.positions), before)
        finally:
            for one, scheme in schemes:
                del one._modules["posenc"]
                if scheme is not None:
                    one._modules["posenc"] = scheme
        angles = relative_change(nudged, before).cummax(0).values
        if bool((moved > (MAX_CHANGE * angles).clamp(min=ROUNDING[self.own_dtype])).any()):
            raise AdapterInvalid(
                f"Attention layer {layer} as {type(self.adapter).__name__} patches it has other outputs with the "
                f"model's own positions than before, by {float(moved.max()):.1e}. In the adapter, correct geometry "
                "(rotary, its frequencies and layout; slopes), scaling, swaps, probe, or the arguments of `attend`."
            )

    def verdict_of(self, layer: int) -> Proof:
        """The verdict on one layer."""
        scheme: Scheme = scheme_on(self.attentions[layer].scheme, self.positions.device)
        geometry, window = self.geometry.of_layer(layer), self.attentions[layer].window
        must_move = differs_from_host(scheme, self.positions, geometry)
        may_move = must_move or shows_silent_terms(scheme)
        if must_move and window is not None and not differs_from_host(scheme, self.positions, geometry, window):
            return Proof("identity")  # the probe has no mask, so it would see keys that the layer's window hides
        if self.widened:
            refuse_not_finite(self.run_in_own_dtype(layer), scheme)
        change, moves = 0.0, False
        for sharper in SHARPENING:
            moved, angles = self.changes_at(layer, sharper)
            shown = (MIN_CHANGE * angles).clamp(min=self.rounding(layer, sharper))
            allowed = (MAX_CHANGE * angles).clamp(min=ROUNDING[self.own_dtype] * sharper)
            self.check_unaffected(moved, allowed, scheme)
            change = float(moved.max())
            moves = bool((moved > (shown if may_move else allowed)).any())
            if moves or not must_move:
                break
        if (must_move and not moves) or (moves and not may_move):
            what = "nothing moved" if must_move else f"outputs moved by {change:.1e}, and it equals the model's own"
            raise NoEffect(
                f"Scheme {scheme.shown_name!r} was installed, but {what}. The model was restored; check its "
                "weights and its adapter, and report this if they are sound."
            )
        if not moves:
            return Proof("identity", change)
        self.check_terms(layer, scheme)
        return Proof("moved", change, scheme.unchanged_below)

    def changes_at(self, layer: int, sharper: float) -> tuple[Tensor, Tensor]:
        """Changes ``[token]`` of the outputs by the patch, and by float32 angles, with scores times ``sharper``."""
        if sharper == SHARPENING[0]:
            before, nudged = self.unpatched[layer]
        else:
            with unpatched_view(self.patch):
                before, nudged = self.run_unpatched(layer, sharper)
        moved = relative_change(self.run_patched(layer, sharper), before)
        return moved, relative_change(nudged, before).cummax(0).values

    def check_terms(self, layer: int, scheme: Scheme) -> None:
        """Refuse a patched layer that drops a term of its scheme, or keeps the positions that the scheme replaces."""
        adapter, name = type(self.adapter).__name__, scheme.shown_name
        where = f"attention layer {layer} as {adapter} patches it"
        no_positions = neutral(hook for hook in NEUTRAL if has_any(scheme, [hook]))
        # A random code, because a normalisation removes codes that are the same in all channels.
        if "embed" in no_positions and not self.changes(layer, neutral(["embed"]), {"embed": random_code}):
            raise NoEffect(
                f"Scheme {name!r} adds codes to the embeddings, and none reaches {where}. In the adapter, have "
                "`swaps` yield the module that adds them, and `probe` add them as the model does."
            )
        for term, hooks in TERMS.items():
            if not has_any(scheme, hooks) or not self.changes_formula(layer, scheme, neutral(hooks)):
                continue
            if not self.changes(layer, {}, neutral(hooks)):
                raise NoEffect(
                    f"Scheme {name!r} has {term}, and {where} computes the same without it. In the adapter, pass q, k "
                    "and v to `attend` before any rotation, with the call's keywords, and return its result."
                )
        replaces = scheme.replaces_host and not scheme.keeps_table and not isinstance(self.adapter, GeneralAdapter)
        if replaces and self.depends_on_positions(layer, no_positions):
            raise NoEffect(
                f"Scheme {name!r} replaces the model's own positions, and {where} still uses them. In the adapter, "
                "have `swaps` yield the modules that add them (the rotary module, the position table), and pass q and "
                "k to `attend` before any rotation."
            )

    def changes(self, layer: int, one: Hooks, other: Hooks) -> bool:
        """Whether a patched layer has other outputs with the hooks ``one`` in its scheme than with ``other``."""
        own: Scheme = self.attentions[layer].scheme
        for sharper in (*SHARPENING, *SOFTENING):
            with replaced(own, one):
                before = self.run(layer, sharper, self.positions) if one else self.run_patched(layer, sharper)
            with replaced(own, other):
                moved = relative_change(self.run(layer, sharper, self.positions), before)
            if not bool((moved <= self.rounding(layer, max(sharper, 1.0))).all()):  # true for NaN, too
                return True
        return False

    def depends_on_positions(self, layer: int, hooks: Hooks) -> bool:
        """Whether a patched layer has other outputs at reversed positions, with ``hooks`` in its scheme."""
        with replaced(self.attentions[layer].scheme, hooks):
            before, after = (self.run(layer, SHARPENING[0], at) for at in (self.positions, self.positions.flip(1)))
        return bool((relative_change(after, before) > self.rounding(layer, SHARPENING[0]) / 10).any())  # mostly equal

    def changes_formula(self, layer: int, scheme: Scheme, hooks: Hooks) -> bool:
        """Whether ``hooks`` change the formula of the scheme's attention by enough to show in the layer's outputs."""
        threshold = MIN_TERM_EFFECT * self.rounding(layer, SHARPENING[0])
        if threshold > 1:
            return False
        attention, geometry = self.attentions[layer], self.geometry.of_layer(layer)
        with torch.no_grad(), in_float32(attention, self.own_dtype) if self.widened else nullcontext():
            return formula_change(attention, scheme, geometry, self.positions, self.hidden, hooks) > threshold

    def rounding(self, layer: int, sharper: float) -> float:
        """Largest relative change of a layer's outputs that rounding may cause, with scores times ``sharper``."""
        accumulated = ROUNDING[self.hidden.dtype] * sharper
        if self.widened and quantised_modules(
            self.attentions[layer]
        ):  # the output projection may round to the other side
            return max(accumulated, 2 * torch.finfo(self.own_dtype).eps)
        return accumulated

    def check_unaffected(self, moved: Tensor, limit: Tensor, scheme: Scheme) -> None:
        """Refuse changes ``moved [token]`` that are not finite, or above ``limit [token]`` at unaffected tokens."""
        refuse_not_finite(moved, scheme)
        still = (self.positions[0] < scheme.unchanged_below).to(moved.device)
        leaked = moved[still & (moved > limit)]
        if len(leaked):
            raise NoEffect(
                f"Scheme {scheme.shown_name!r} moved tokens below position {scheme.unchanged_below} by "
                f"{float(leaked.max()):.1e}, which it must not affect. Report this with `hf-posenc check`."
            )


def refuse_not_finite(outputs: Tensor, scheme: Scheme) -> None:
    """Raise `NoEffect` if a value is not finite."""
    if not outputs.isfinite().all():
        raise NoEffect(
            f"The probe of scheme {scheme.shown_name!r} gave infinite or NaN values. Check its terms and weights."
        )
