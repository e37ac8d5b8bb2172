"""Why does counting 0, 1, 2 … do nothing in GPT-2 and BERT?

The simplest code is the number of the position, added to all channels of a word. LayerNorm subtracts the mean over
channels, and with it this common number: only rounding is left. RMSNorm only divides, so the number remains. With a
random sign for each channel, the code survives in all models.
"""

from lesson import apart, hidden, show, tokens

from hf_posenc import patch_model
from hf_posenc.checks.tiny_models import tiny_model

ids = tokens("the dog chased another dog down the road")
CODES = {"integer": {}, "integer with random signs": {"direction": "random"}, "norm01": {}}
rows = {}
for model in ("gpt2", "bert", "llama"):
    none = hidden(patch_model(tiny_model(model), "none"), ids)
    for name, options in CODES.items():
        moved = hidden(patch_model(tiny_model(model), name.partition(" ")[0], **options), ids)
        rows[model, name] = apart(moved, none)
show(("model", "code", "largest difference to no positions"), [(*key, value) for key, value in rows.items()])
unseen = {key for key, value in rows.items() if value < 2e-3}
assert unseen == {(model, code) for model in ("gpt2", "bert") for code in ("integer", "norm01")}
