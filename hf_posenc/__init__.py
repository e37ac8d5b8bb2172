"""Change how a live Hugging Face transformer knows position.

>>> model = AutoModelForCausalLM.from_pretrained(...)          # doctest: +SKIP
>>> hf_posenc.patch_model(model, "yarn", factor=8)             # doctest: +SKIP
>>> print(hf_posenc.describe(model))                           # doctest: +SKIP

Names load when they are first used, so that the command line answers without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_posenc.advice import Advice, advise
    from hf_posenc.checkpoint import disable_auto, enable_auto, from_pretrained
    from hf_posenc.errors import PosEncError
    from hf_posenc.export import export_native
    from hf_posenc.patching import describe, is_patched, patch_model, scheme_of, unpatch_model
    from hf_posenc.peft_adapters import get_peft_model, load_peft_adapter, save_peft_adapter
    from hf_posenc.registry import SchemeRecord, list_schemes, register_adapter, register_scheme
    from hf_posenc.report import PatchReport
    from hf_posenc.schemes.base import Scheme
    from hf_posenc.starters import load_starter

__version__ = "0.1.0"

_HOMES = {
    "Advice": "advice",
    "PatchReport": "report",
    "PosEncError": "errors",
    "Scheme": "schemes.base",
    "SchemeRecord": "registry",
    "advise": "advice",
    "describe": "patching",
    "disable_auto": "checkpoint",
    "enable_auto": "checkpoint",
    "export_native": "export",
    "from_pretrained": "checkpoint",
    "get_peft_model": "peft_adapters",
    "is_patched": "patching",
    "list_schemes": "registry",
    "load_peft_adapter": "peft_adapters",
    "load_starter": "starters",
    "patch_model": "patching",
    "register_adapter": "registry",
    "register_scheme": "registry",
    "save_peft_adapter": "peft_adapters",
    "scheme_of": "patching",
    "unpatch_model": "patching",
}

__all__ = [
    "Advice",
    "PatchReport",
    "PosEncError",
    "Scheme",
    "SchemeRecord",
    "advise",
    "describe",
    "disable_auto",
    "enable_auto",
    "export_native",
    "from_pretrained",
    "get_peft_model",
    "is_patched",
    "list_schemes",
    "load_peft_adapter",
    "load_starter",
    "patch_model",
    "register_adapter",
    "register_scheme",
    "save_peft_adapter",
    "scheme_of",
    "unpatch_model",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'hf_posenc' has no attribute {name!r}")
    return getattr(import_module(f"hf_posenc.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
