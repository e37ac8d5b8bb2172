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
    from hf_posenc.checkpoints.export import export_native
    from hf_posenc.checkpoints.load import disable_auto, enable_auto, from_pretrained
    from hf_posenc.checkpoints.peft import get_peft_model, load_peft_adapter, save_peft_adapter
    from hf_posenc.errors import PosEncError
    from hf_posenc.insight.advise import Advice, advise
    from hf_posenc.patching.patch import (
        describe,
        is_patched,
        patch_model,
        scheme_of,
        unpatch_model,
    )
    from hf_posenc.patching.report import PatchReport
    from hf_posenc.schemes.base import Scheme
    from hf_posenc.schemes.registry import (
        SchemeRecord,
        list_schemes,
        register_adapter,
        register_scheme,
    )
    from hf_posenc.starters.loading import load_starter

__version__ = "0.1.0"

_HOMES = {
    "Advice": "insight.advise",
    "PatchReport": "patching.report",
    "PosEncError": "errors",
    "Scheme": "schemes.base",
    "SchemeRecord": "schemes.registry",
    "advise": "insight.advise",
    "describe": "patching.patch",
    "disable_auto": "checkpoints.load",
    "enable_auto": "checkpoints.load",
    "export_native": "checkpoints.export",
    "from_pretrained": "checkpoints.load",
    "get_peft_model": "checkpoints.peft",
    "is_patched": "patching.patch",
    "list_schemes": "schemes.registry",
    "load_peft_adapter": "checkpoints.peft",
    "load_starter": "starters.loading",
    "patch_model": "patching.patch",
    "register_adapter": "schemes.registry",
    "register_scheme": "schemes.registry",
    "save_peft_adapter": "checkpoints.peft",
    "scheme_of": "patching.patch",
    "unpatch_model": "patching.patch",
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
