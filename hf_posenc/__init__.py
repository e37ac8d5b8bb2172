"""Replace the positional encoding of a loaded Hugging Face model.

>>> model = AutoModelForCausalLM.from_pretrained(...)          # doctest: +SKIP
>>> hf_posenc.patch_model(model, "yarn", factor=8)             # doctest: +SKIP
>>> print(hf_posenc.describe(model))                           # doctest: +SKIP

Names are imported when they are first used, so that the command line starts without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import after_import, lazy_exports

if TYPE_CHECKING:
    from hf_posenc.checkpoints.auto import disable_auto as disable_auto
    from hf_posenc.checkpoints.auto import enable_auto as enable_auto
    from hf_posenc.checkpoints.export import Exported as Exported
    from hf_posenc.checkpoints.export import export as export
    from hf_posenc.checkpoints.load import from_pretrained as from_pretrained
    from hf_posenc.checkpoints.merge import Merged as Merged
    from hf_posenc.checkpoints.merge import merge as merge
    from hf_posenc.checkpoints.peft import load_peft_adapter as load_peft_adapter
    from hf_posenc.checkpoints.readers.compare import read_elsewhere as read_elsewhere
    from hf_posenc.checks.run import check as check
    from hf_posenc.checks.run import check_scheme as check_scheme
    from hf_posenc.core.record import SchemeRecord as SchemeRecord
    from hf_posenc.errors import PosEncError as PosEncError
    from hf_posenc.eval import compare as compare
    from hf_posenc.eval import evaluate as evaluate
    from hf_posenc.insight.advise import Advice as Advice
    from hf_posenc.insight.advise import advise as advise
    from hf_posenc.patches.registry import register_adapter as register_adapter
    from hf_posenc.patching.patch import patch_model as patch_model
    from hf_posenc.patching.patch import unpatch_model as unpatch_model
    from hf_posenc.patching.report import PatchReport as PatchReport
    from hf_posenc.patching.set_factor import set_factor as set_factor
    from hf_posenc.patching.state import describe as describe
    from hf_posenc.patching.state import is_patched as is_patched
    from hf_posenc.patching.state import scheme_of as scheme_of
    from hf_posenc.schemes.base import Scheme as Scheme
    from hf_posenc.schemes.citations import cite as cite
    from hf_posenc.schemes.registry import list_schemes as list_schemes
    from hf_posenc.schemes.registry import register_scheme as register_scheme
    from hf_posenc.starters.loading import load_starter as load_starter
    from hf_posenc.training.finetune import finetune as finetune

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__)


def _hook_peft() -> None:
    from hf_posenc.checkpoints.peft_methods import install

    install()


after_import("peft", _hook_peft)
