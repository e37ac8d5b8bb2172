"""Two dogs in one sentence: which is which?

A model with random weights reads “the dog chased another dog”. Both dogs enter as the same vector; the lesson compares
their outputs in the last layer. In an encoder without positions both outputs are equal, so it cannot know who chases
whom. A decoder distinguishes them even then, because each word sees only the words before it.
"""

from lesson import SAME, apart, hidden, patched, schemes, show, tokens

from hf_posenc.errors import SchemeNotDefined

rows = {}
for model in ("bert", "llama"):
    for scheme in ("none", *schemes("sinusoidal", "learned", "rope", "alibi", "t5")):
        try:
            outputs = hidden(patched(model, scheme), tokens("the dog chased another dog"))
        except SchemeNotDefined:  # for this model
            continue
        rows[model, scheme] = apart(outputs[1], outputs[4])
show(("model", "scheme", "largest difference of the two dogs"), [(*key, value) for key, value in rows.items()])
assert [key for key, value in rows.items() if value < SAME] == [("bert", "none")]
