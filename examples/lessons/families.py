"""Where can position enter a transformer?

A scheme can add a code to words before the first layer, rotate queries and keys, add a bias to scores before softmax,
change distances, or hide keys. The hooks that a scheme overrides show what it does.
"""

from lesson import show
from properties import targets

from hf_posenc.schemes.base import overrides
from hf_posenc.schemes.registry import list_schemes

HOOKS_OF = {
    "added to words": ("embed", "read_table"),
    "turns queries and keys": ("rotation", "row_rotation", "prepare"),
    "added to scores": ("bias",),
    "places tokens elsewhere": ("regions", "reposition"),
    "limits sight": ("visible",),
    "scales scores": ("query_scale", "row_scale", "logit_scale", "sink"),
    "added to outputs": ("values",),
}
schemes_at: dict[str, list[str]] = {where: [] for where in HOOKS_OF}
for record in list_schemes():
    parts = [part for target in targets(record.name) for part in target.layer().scheme.schemes]
    own = [part for part in parts if part.record.name == record.name]
    for where, hooks in HOOKS_OF.items():
        if any(overrides(part, hook) for part in own for hook in hooks):
            schemes_at[where].append(record.name)
show(("position is", "schemes", "which"), [(at, len(names), ", ".join(names)) for at, names in schemes_at.items()])
assert "sinusoidal" in schemes_at["added to words"]
assert "alibi" in schemes_at["added to scores"]
assert "alibi" not in schemes_at["turns queries and keys"]
