"""Two equal words in one sentence: does the model know one from the other?"""

from __future__ import annotations

from teaching import Result, Table, lesson
from tiny_models import (
    SAME,
    apart,
    hidden,
    named,
    patched_if_defined,
    tokens,
)

SENTENCE = "the dog chased another dog"
MODELS = {"bert": "encoder", "llama": "decoder"}


@lesson("Two dogs in one sentence: which is which?", schemes=("none", "sinusoidal", "learned", "rope", "alibi", "t5"))
def dog(schemes: tuple[str, ...]) -> Result:
    """Outputs of a small BERT and a small Llama for the sentence, under each scheme."""
    ids = tokens(SENTENCE)
    first, second = (n for n, word in enumerate(SENTENCE.split()) if word == "dog")
    rows = []
    for model, kind in MODELS.items():
        for scheme in dict.fromkeys(("none", *schemes)):
            patched = patched_if_defined(model, scheme)
            if patched is not None:
                result = hidden(patched, ids)
                rows.append(
                    (f"{model} ({kind})", scheme, difference := apart(result[first], result[second]), difference < SAME)
                )
    blind = {(row[0].split()[0], row[1]) for row in rows if row[3]}
    shows = f"""A model with random weights reads “{SENTENCE}”. Both dogs enter as the same vector; what leaves the last
        layer at their two places is compared. A model that gives both the same cannot say who chases whom."""
    conclusion = " ".join(
        sentence(model, kind, blind, [row[1] for row in rows if row[0].startswith(model)])
        for model, kind in MODELS.items()
    )
    return (
        shows,
        [Table(("model", "scheme", "largest difference of the two dogs", "the same"), tuple(rows))],
        conclusion,
    )


def sentence(model: str, kind: str, blind: set[tuple[str, str]], tried: list[str]) -> str:
    """Sentence on the numbers of one model."""
    same = [scheme for scheme in tried if (model, scheme) in blind]
    different = [scheme for scheme in tried if scheme not in same]
    result = (
        f"In the {kind} both dogs are one under {named(same)}" if same else f"In the {kind} no scheme confuses them"
    )
    if different:
        result += f"; they are distinguished under {named(different)}"
    by_mask = "none" in different and kind == "decoder"
    return result + (": even without positions, as each word sees only what came before it." if by_mask else ".")


if __name__ == "__main__":
    dog.main()
