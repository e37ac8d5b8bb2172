"""What the name of a model stands for, as the arguments of lm-eval's `HFLM`."""

from __future__ import annotations

from typing import Any

from hf_posenc.checkpoints.adapter_folder import local_folder
from hf_posenc.checkpoints.hub import HUB_OPTIONS, OF_ONE_NAME
from hf_posenc.checkpoints.model_name import ModelName
from hf_posenc.checkpoints.tokenizer import is_guarded, load_tokenizer

TOKENIZER_OPTIONS = ("add_bos_token",)  # of `HFLM`, which it passes on to a tokenizer that it loads itself


def model_arguments(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments ``pretrained``, ``peft`` and, where they are not given, ``tokenizer`` and ``dtype``.

    Args:
        name: of a model, of a PEFT adapter, or of a bundled model.
        options: the other arguments of the caller; ``peft`` among them is the name of an adapter on the model.

    Raises:
        PosEncError: there is no such model; see `ModelName.of`.
    """
    hub = {key: options[key] for key in HUB_OPTIONS if options.get(key) is not None}
    found = ModelName.of(name, adapter=options.get("peft") or None, hub=hub)
    own = {key: value for key, value in options.items() if key not in hub}
    chosen = {**own, **found.hub, "pretrained": found.model, "peft": found.adapter}
    if found.adapter is not None and found.adapter_hub.keys() & set(OF_ONE_NAME):
        chosen["peft"] = str(local_folder(found.adapter, found.adapter_hub))
    if chosen.get("tokenizer") is None and is_guarded(found.tokenizer):
        given = {key: options[key] for key in TOKENIZER_OPTIONS if options.get(key) is not None}
        chosen["tokenizer"] = load_tokenizer(found.tokenizer, **given)
    elif chosen.get("tokenizer") is None and found.adapter is not None:
        chosen["tokenizer"] = found.tokenizer
    if chosen.get("dtype") is None:
        chosen["dtype"] = found.dtype or "auto"
    return chosen
