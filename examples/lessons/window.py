"""Why a trained model fails on long texts, and why hiding all but the nearest keys helps.

Two things are new beyond the trained length, and either may be the cause: distances that never occurred in training,
and more keys than attention was ever spread over. Distances are read off a scheme's regions, the spread is the entropy
of attention on a real text. A scheme that has one of them and not the other tells which of the two costs the loss.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from teaching import Result, Table, lesson
from tiny_models import named
from torch import Tensor

from hf_posenc.core.context import PositionContext
from hf_posenc.patching.patch import patch_model, unpatch_model
from hf_posenc.patching.state import scheme_of
from hf_posenc.starters.loading import load_starter

TIMES = 4
LAST = 64
SCORED = 2  # texts
AS_TRAINED = 0.1  # nats of loss
WIDER = math.log(TIMES) / 4  # nats of entropy; TIMES as many keys, evenly attended to, would add ln TIMES


@lesson("Why do models fail beyond their trained length, and what does a window mend?",
       schemes=("rope", "rerope", "window"))  # fmt: skip
def window(schemes: tuple[str, ...]) -> Result:
    """Evaluate the starter Llama on texts of four times its trained length, under each scheme."""
    model, tokenizer = load_starter("llama")
    trained = int(model.config.max_position_embeddings)
    texts = long_texts(tokenizer, trained * TIMES)
    rows = [("as trained", trained, *measured(model, texts[:, -trained:], None))]
    for scheme in schemes:
        patch_model(model, scheme, factor=TIMES)
        rows.append((scheme, trained * TIMES, *measured(model, texts, scheme_of(model))))
        unpatch_model(model)
    _, _, known, _, entropy, loss = rows[0]
    unseen = [row[0] for row in rows[1:] if row[2] > known + 1]
    spread = [row[0] for row in rows[1:] if row[4] > entropy + WIDER]
    both = [row[0] for row in rows[1:] if row[0] not in (*unseen, *spread)]
    near = [row[0] for row in rows[1:] if row[5] < loss + AS_TRAINED]
    far = [row[0] for row in rows[1:] if row[0] not in near]
    shows = f"""A small Llama trained on {trained} tokens reads Python sources of {trained * TIMES}. Measured is the
        farthest distance that its slowest hand meets, how many keys a token sees, over how many nats attention is
        spread (entropy, mean over layers, heads and the last {LAST} tokens), and the loss of those
        same {LAST} tokens; first at the trained length."""
    conclusion = (
        f"Distances, as rotations have them, that were never seen in training occur under {named(unseen)}; attention "
        f"is spread wider than in training under {named(spread)}; neither is so under {named(both)}. The loss stays "
        f"within {AS_TRAINED} of the trained length's "
        f"under {named(near)}"
        + (f", and is lost under {named(far)}. " if far else ". ")
        + alone("new distances", unseen, spread, far)
        + alone("a wider spread", spread, unseen, far)
    )
    columns = ("scheme", "tokens", "farthest, in unscaled tokens", "keys seen", "entropy, nats", "loss, nats/token")
    return shows, [Table(columns, tuple(rows))], conclusion


def alone(cause: str, has: list[str], other: list[str], far: list[str]) -> str:
    """What one of the two causes does to the loss by itself, as far as the schemes tell.

    Args:
        cause: in words.
        has: schemes under which it is there.
        other: schemes under which the other cause is there.
        far: schemes under which the loss is lost.
    """
    single = [scheme for scheme in has if scheme not in other]
    if not single:
        return f"No scheme here has {cause} alone, so that its share is not known. "
    lost, kept = [s for s in single if s in far], [s for s in single if s not in far]
    found = [
        f"costs the loss under {named(lost)}" if lost else "",
        f"costs nothing under {named(kept)}" if kept else "",
    ]
    return f"At this length, {cause} alone {' and '.join(filter(None, found))}. "


@torch.no_grad()
def measured(model: Any, texts: Tensor, scheme: Any) -> tuple[float, int, float, float]:
    """Farthest angle and keys of the last row, entropy of the last rows' attention, loss of their tokens."""
    model.set_attn_implementation("eager")  # which alone returns attention
    out = model(texts, output_attentions=True, use_cache=False)
    model.set_attn_implementation("sdpa")
    weights = torch.stack([layer[:, :, -LAST:] for layer in out.attentions])
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
    loss = torch.nn.functional.cross_entropy(out.logits[:, -LAST - 1 : -1].flatten(0, 1), texts[:, -LAST:].flatten())
    farthest, keys = last_row(texts.shape[1], scheme)
    return farthest, keys, float(entropy), float(loss)


def last_row(length: int, scheme: Any) -> tuple[float, int]:
    """Largest angle of the last token's slowest pair, in tokens of the model's own, and its number of visible keys.
    Scaled frequencies rotate less for the same distance; under a bias the distance is the true one.
    """
    positions = torch.arange(length)
    if scheme is None:
        return float(length - 1), length
    query, ctx = positions[-1:], PositionContext(positions[None], positions[None], True, True)
    visible, by_row, farthest, keys = scheme.terms(ctx).visible.holds(query, positions), scheme.row_rotation(), 0.0, 0
    for region in scheme.regions(ctx):
        mine = region.band.holds(query, positions) & visible
        rotation = by_row.rotation_of(length) if by_row else region.rotation or scheme.rotation()
        distance = (region.query_at(query) - region.key_at(positions))[mine].double()
        slower = 1.0 if rotation is None else float(rotation.frequencies[-1]) / own_slowest(scheme)
        farthest, keys = max(farthest, slower * float(distance.max())), keys + len(distance)
    return farthest, keys


def own_slowest(scheme: Any) -> float:
    """Radians per token of the model's slowest pair."""
    return float(scheme.geometry.rotary.rotation.frequencies[-1])


def long_texts(tokenizer: Any, length: int) -> Tensor:
    """Held-out sources as ids ``[texts, length]``, spaced over all of them."""
    from hf_posenc.eval.texts.measured_text import default_text

    text = default_text().documents[0].content[: 40 * length * SCORED]
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    step = (len(ids) - length) // SCORED
    return torch.tensor([ids[n * step : n * step + length] for n in range(SCORED)])


if __name__ == "__main__":
    window.main()
