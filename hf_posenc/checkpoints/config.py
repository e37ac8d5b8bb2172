"""Read a checkpoint's ``config.json``, and refuse one that makes transformers download code.

transformers downloads and runs kernels from the Hub as soon as a configuration names them. So a file may choose only
installed implementations. The caller may choose any other by transformers' own keyword.
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
FLASH_PACKAGES = {  # backends that transformers downloads from the Hub if the package is missing
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn",
}
EXPERT_KERNELS = ("eager", "batched_mm", "grouped_mm")  # implementations in transformers and PyTorch
QUANTISERS = (  # methods whose kernels are part of an installed package
    *("aqlm", "auto-round", "awq", "bitnet", "bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"),
    *("compressed-tensors", "fouroversix", "fp_quant", "gptq", "higgs", "hqq", "quanto", "quark", "sinq", "spqr"),
    *("torchao", "vptq"),
)


def config_content(name: str, hf_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Content of a model's configuration, or of the caller's ``config``, without the config guard."""
    config = hf_kwargs.get("config")
    if isinstance(config, PreTrainedConfig):
        return {"model_type": config.model_type, **vars(config)}
    content = PreTrainedConfig.get_config_dict(name if config is None else config, **hub_options(hf_kwargs))[0]
    check_no_remote_code(content, name, hf_kwargs)
    return unguard(content, name)


def check_no_remote_code(config: Mapping[str, Any], where: str, chosen: Container[str]) -> None:
    """Refuse a configuration with an entry that names code to be fetched, except for keywords in ``chosen``."""
    for name, value in _all_entries(config):
        keyword = name.strip("_").removesuffix("_internal")
        values = list(value.values()) if isinstance(value, Mapping) else [value]
        if keyword == ATTENTION and ATTENTION not in chosen:
            remote = [kernel for kernel in values if kernel is not None and not _is_local_attention(kernel)]
        elif keyword == EXPERTS and EXPERTS not in chosen:
            remote = [kernel for kernel in values if kernel is not None and kernel not in EXPERT_KERNELS]
        elif keyword == QUANTISATION and QUANTISATION not in chosen and isinstance(value, Mapping):
            method = value.get("quant_method")
            remote = [] if method is None or method in QUANTISERS else [method]
        else:
            continue
        if remote:
            raise CheckpointMismatch(
                f"The configuration of {where} says {name}={shown(remote[0])}, which is not installed here, and "
                f"which transformers may fetch as code. Remove the entry, or pass {keyword}= yourself to choose one."
            )


def _is_local_attention(name: Any) -> bool:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not isinstance(name, str):
        return False
    backend = name.removeprefix("paged|")
    if backend in FLASH_PACKAGES:
        return find_spec(FLASH_PACKAGES[backend]) is not None
    return backend == "eager" or ("/" not in backend and backend in ALL_ATTENTION_FUNCTIONS)


def _all_entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of a configuration and of all objects in it."""
    pending: list[Any] = [config]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield from ((key, entry) for key, entry in value.items() if isinstance(key, str))
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value
