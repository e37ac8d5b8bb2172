"""The report of a patch, in numbers and in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Proof:
    """The result of the effect probe.

    Attributes:
        verdict: ``moved``; ``identity`` if the scheme equals the unpatched model by definition; ``deferred`` on the
            meta device.
        change: largest change of the probed outputs, relative to the largest output.
        unchanged_below: tokens below this position were checked to be unchanged.
    """

    verdict: Literal["moved", "identity", "deferred"]
    change: float = 0.0
    unchanged_below: int = 0


@dataclass(frozen=True)
class PatchReport:
    """The changes that a patch made, and the proof of their effect. Prints as a short text.

    Attributes:
        scheme: name of the scheme, as a user writes it.
        model: class of the patched base model.
        trained_length, target_length: lengths in tokens.
        touched: name of each new module class, and the number of modules.
        parameters_added, parameters_frozen: numbers of weights.
        described: the scheme with those options that differ from their defaults.
        layers: schemes of single layers that differ from ``scheme``.
        kinds: each kind of layer and its scheme, with the number of such layers; empty if all layers are alike.
        mixes_otherwise: whether layers without attention carry order as well.
        stacks: reports of encoder and decoder, if both were patched at once; counts are then sums over both.
        proof: result of the effect probe.
    """

    scheme: str
    model: str
    trained_length: int
    target_length: int
    touched: dict[str, int]
    parameters_added: int
    parameters_frozen: int
    proof: Proof
    described: str = ""
    layers: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    mixes_otherwise: bool = False
    stacks: dict[str, PatchReport] = field(default_factory=dict)

    @classmethod
    def of_stacks(cls, model: str, stacks: dict[str, PatchReport]) -> PatchReport:
        """The report of an encoder–decoder of class ``model``, from the reports of its stacks, which share a scheme."""
        parts = list(stacks.values())
        touched: Counter[str] = sum((Counter(part.touched) for part in parts), Counter())
        verdicts = [part.proof.verdict for part in parts]
        weakest = next(verdict for verdict in ("deferred", "moved", "identity") if verdict in verdicts)
        proof = Proof(
            weakest, max(part.proof.change for part in parts), min(part.proof.unchanged_below for part in parts)
        )
        return replace(
            parts[0],
            model=model,
            touched=dict(touched),
            parameters_added=sum(part.parameters_added for part in parts),
            parameters_frozen=sum(part.parameters_frozen for part in parts),
            proof=proof,
            stacks=stacks,
        )

    @property
    def factor(self) -> float:
        """Target length over trained length."""
        return self.target_length / self.trained_length

    def to_dict(self) -> dict[str, Any]:
        """The report as values that JSON can hold."""
        values = {**asdict(self), "factor": self.factor}
        del values["stacks"]
        stacks = {name: part.to_dict() for name, part in self.stacks.items()}
        return values | ({"stacks": stacks} if stacks else {})

    def __str__(self) -> str:
        lines = [
            f"{self.model} patched with {self.described or self.scheme}",
            f"  formula     hf-posenc info {self.scheme}",
            f"  lengths     trained {self.trained_length}, target {self.target_length}, factor {self.factor:g}",
            f"  touched     {', '.join(f'{n} × {name}' for name, n in self.touched.items())}",
            f"  parameters  {self.parameters_added:,} added, {self.parameters_frozen:,} frozen",
            f"  proof       {_describe_proof(self.proof)}",
        ]
        if self.target_length > self.trained_length:
            lines.append(f"  tokenizer   cuts texts at its model_max_length: set that to {self.target_length} or more")
        if self.kinds:
            lines.insert(1, f"  layers      {'; '.join(f'{n} × {kind}' for kind, n in self.kinds.items())}")
        elif self.layers:
            lines.insert(1, f"  layers      {', '.join(f'{key}: {name}' for key, name in self.layers.items())}")
        if self.mixes_otherwise:
            lines.append("  order       also carried by layers without attention, which no scheme changes")
        lines += [f"{name}: {part}" for name, part in self.stacks.items()]
        return "\n".join(lines)


def _describe_proof(proof: Proof) -> str:
    if proof.verdict == "deferred":
        return "deferred: the weights are not loaded yet"
    if proof.verdict == "identity":
        return "identity: the scheme equals the model's own positions at these lengths"
    unchanged = f"; positions below {proof.unchanged_below} unchanged" if proof.unchanged_below else ""
    return f"moved: one layer's outputs changed by {proof.change:.2g} of the largest output{unchanged}"
