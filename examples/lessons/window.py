"""Why do models fail beyond their trained length, and what does a window change?

A small Llama trained on 256 tokens reads Python sources of 1,024. Two things are new: distances that never occurred in
training, and more keys than attention was spread over in training. ReRoPE removes only the new distances, a window
removes both, and both keep the loss. At this length, the new distances cause the loss; the wider spread costs nothing.
"""

import torch
from lesson import schemes, show
from torch.nn.functional import cross_entropy

from hf_posenc import patch_model, unpatch_model
from hf_posenc.eval.texts.measured_text import default_text
from hf_posenc.starters.loading import load_starter

TIMES, LAST, TEXTS = 4, 64, 2
model, tokenizer = load_starter("llama")
trained = model.config.max_position_embeddings
source = default_text().documents[0].content[: 40 * TIMES * trained * TEXTS]
ids = tokenizer(source, add_special_tokens=False, verbose=False)["input_ids"]
step = (len(ids) - TIMES * trained) // TEXTS
texts = torch.tensor([ids[n * step : n * step + TIMES * trained] for n in range(TEXTS)])


@torch.no_grad()
def measured(read: torch.Tensor) -> tuple[float, float]:
    """Entropy of the last rows' attention in nats, mean over layers and heads, and the loss of their tokens."""
    model.set_attn_implementation("eager")  # only this implementation returns attention weights
    out = model(read, output_attentions=True, use_cache=False)
    model.set_attn_implementation("sdpa")
    weights = torch.stack([layer[:, :, -LAST:] for layer in out.attentions])
    loss = cross_entropy(out.logits[:, -LAST - 1 : -1].flatten(0, 1), read[:, -LAST:].flatten())
    return float(-(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()), float(loss)


rows = {"as trained": measured(texts[:, -trained:])}
for scheme in schemes("rope", "rerope", "window"):
    patch_model(model, scheme, factor=TIMES)
    rows[scheme] = measured(texts)
    unpatch_model(model)
show(
    ("scheme", "entropy of attention, nats", "loss, nats/token"), [(scheme, *values) for scheme, values in rows.items()]
)
if {"rope", "rerope", "window"} <= rows.keys():
    assert rows["rope"][0] > rows["rerope"][0] > rows["window"][0] + 0.1
    assert max(rows["rerope"][1], rows["window"][1]) + 1 < rows["rope"][1]
