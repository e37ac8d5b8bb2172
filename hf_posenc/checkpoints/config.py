"""Read a checkpoint's ``config.json``, and refuse one that makes transformers download code.

Kernels from the Hub run as soon as they are named. A file may choose among installed implementations; only the caller
may name others, by transformers' own keyword.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from transformers import PreTrainedConfig

from hf_posenc.checkpoints.hub import hub_options
from hf_posenc.errors import CheckpointMismatch, shown
from hf_posenc.patching.config_guard import unguard

ATTENTION, EXPERTS, QUANTISATION = "attn_implementation", "experts_implementation", "quantization_config"
FLASH_PACKAGES = {  # backends that transformers downloads from the Hub where the package is missing
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn",
}
EXPERT_KERNELS = ("eager", "batched_mm", "grouped_mm")  # those of transformers and PyTorch
QUANTISERS = (  # those whose kernels are part of a package
    *("aqlm", "auto-round", "awq", "bitnet", "bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"),
    *("compressed-tensors", "fouroversix", "fp_quant", "gptq", "higgs", "hqq", "quanto", "quark", "sinq", "spqr"),
    *("torchao", "vptq"),
)


def config_content(name: str, hf_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a model's configuration, or of the one the caller passes, without the config guard."""
    given = hf_kwargs.get("config")
    if isinstance(given, PreTrainedConfig):
        return {"model_type": given.model_type, **vars(given)}
    content = PreTrainedConfig.get_config_dict(name if given is None else given, **hub_options(hf_kwargs))[0]
    check_no_remote_code(content, name, hf_kwargs)
    return unguard(content, name)


def check_no_remote_code(config: Mapping[str, Any], where: str, chosen: Container[str]) -> None:
    """Refuse a configuration, or a part of one, that names code to be fetched."""
    for name, value in _all_entries(config):
        plain = name.strip("_").removesuffix("_internal")
        values = list(value.values()) if isinstance(value, Mapping) else [value]
        if plain == ATTENTION and ATTENTION not in chosen:
            odd = [one for one in values if one is not None and not _is_local_attention(one)]
        elif plain == EXPERTS and EXPERTS not in chosen:
            odd = [one for one in values if one is not None and one not in EXPERT_KERNELS]
        elif plain == QUANTISATION and QUANTISATION not in chosen and isinstance(value, Mapping):
            method = value.get("quant_method")
            odd = [] if method is None or method in QUANTISERS else [method]
        else:
            continue
        if odd:
            raise CheckpointMismatch(
                f"The configuration of {where} says {name}={shown(odd[0])}, which is not installed here, and which "
                f"transformers may fetch as code. Remove the entry, or pass {plain}= yourself to choose one."
            )


def _is_local_attention(name: Any) -> bool:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = name.removeprefix("paged|") if isinstance(name, str) else None
    if plain in FLASH_PACKAGES:
        return find_spec(FLASH_PACKAGES[plain]) is not None
    return plain == "eager" or (isinstance(plain, str) and "/" not in plain and plain in ALL_ATTENTION_FUNCTIONS)


def _all_entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a configuration and of all objects in it."""
    left: list[Any] = [config]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            yield from ((name, value) for name, value in one.items() if isinstance(name, str))
            left += one.values()
        elif isinstance(one, (list, tuple)):
            left += one
