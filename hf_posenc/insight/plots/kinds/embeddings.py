"""Plot of what a code leaves of real token embeddings: integers drown them within a few positions.

cos(x, x + code(p))     mean over tokens, and the range of the middle 80 %;  1 is untouched, 0 is lost
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hf_posenc.errors import OutsideModel
from hf_posenc.insight.plots import codes, marks
from hf_posenc.insight.plots.kinds.codes import OfCodes
from hf_posenc.insight.plots.registry import Scales, Sheet, View, register_plot
from hf_posenc.insight.plots.target import Target

LENGTH = 64
QUANTILES = (0.1, 0.9)


@register_plot
class Drowned(OfCodes):
    """Cosine between a model's token embeddings and the same with the code of a position added."""

    name, title = "drowned", "What a code leaves of the token embeddings of a model"

    def accepts(self, target: Target) -> bool:
        return codes.has_code(target) and not target.has("rotation", "row_rotation")

    def shows(self, target: Target) -> bool:
        return self.accepts(target) and target.embeddings is not None

    def is_informative(self, target: Target) -> bool:
        return False

    def length(self, target: Target) -> int:
        return LENGTH

    def numbers(self, target: Target, view: View) -> dict[str, Any]:
        if target.embeddings is None:
            raise OutsideModel(
                "The plot 'drowned' compares codes with the token embeddings of a model, and there is none"
            )
        length = view.length or LENGTH
        code, tokens = codes.codes(target, length), target.embeddings.float()
        cosine = torch.stack([torch.cosine_similarity(tokens, tokens + one, dim=1) for one in code])
        low, high = cosine.quantile(torch.tensor(QUANTILES), dim=1)
        return {
            "position": torch.arange(length), "cosine": cosine.mean(1), "low": low, "high": high,
            "code_norm": code.norm(dim=1), "token_norm": float(tokens.norm(dim=1).mean()),
        }  # fmt: skip

    def draw(self, figure: Any, sheets: Sequence[Sheet], scales: Scales) -> None:
        figure.set_size_inches(8.4, 3.5)
        left, right = figure.subplots(1, 2)
        for number, sheet in enumerate(sheets):
            found = sheet.numbers
            marks.curve(left, found["position"], found["code_norm"], sheet.label, number, len(sheets))
            marks.curve(right, found["position"], found["cosine"], sheet.label, number, len(sheets))
            right.fill_between(
                found["position"].numpy(), found["low"].numpy(), found["high"].numpy(), alpha=0.18, linewidth=0,
                color=marks.style(number)["color"],
            )  # fmt: skip
        norm = sheets[0].numbers["token_norm"]
        left.axhline(norm, color=marks.ink(), linestyle=(0, (4, 3)), linewidth=1.1, label="token embeddings, mean")
        left.set_yscale("symlog", linthresh=norm / 4)
        left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        left.set_ylim(bottom=0)
        left.set_ylabel("norm of the code")
        right.set_ylim(-0.2, 1.05)
        right.set_ylabel("cos(token, token + code)")
        for axes in (left, right):
            marks.plain(axes)
            axes.set_xlabel("position (tokens)")
        right.set_title("band: the middle 80 % of tokens", loc="left", fontsize=9)
        marks.legend(figure, left, right)
