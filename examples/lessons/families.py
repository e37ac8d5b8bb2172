"""Where can position enter a transformer?

A scheme can add a code to words before the first layer, rotate queries and keys, add a number to scores before softmax,
count distances anew, or hide keys. Which it does is read off the hooks that the scheme itself defines.
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
found: dict[str, list[str]] = {where: [] for where in HOOKS_OF}
for record in list_schemes():
    parts = [part for target in targets(record.name) for part in target.layer().scheme.schemes]
    own = [part for part in parts if part.record.name == record.name]
    for where, hooks in HOOKS_OF.items():
        if any(overrides(part, hook) for part in own for hook in hooks):
            found[where].append(record.name)
show(("position is", "schemes", "which"), [(where, len(names), ", ".join(names)) for where, names in found.items()])
assert "sinusoidal" in found["added to words"]
assert "alibi" in found["added to scores"]
assert "alibi" not in found["turns queries and keys"]
