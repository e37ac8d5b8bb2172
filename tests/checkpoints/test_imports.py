"""PEFT may be imported from anywhere, in the middle of other imports too: its methods are hooked without a circle."""

from __future__ import annotations

import pytest

from ..processes import end, finish, start

pytest.importorskip("peft", reason="hooks in PEFT need the extra `train`")

HOOKED = "import peft; assert hasattr(peft.PeftModel.save_pretrained, 'posenc_hooked')"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import hf_posenc, transformers.trainer_utils",  # which imports PEFT at its top
        "from hf_posenc.training import finetune",
    ],
)
def test_any_order_of_imports(first):
    assert finish(start(["-c", f"{first}\n{HOOKED}\nprint('hooked')"])).endswith("hooked\n")


@pytest.mark.slow
def test_control_without_this_package_nothing_is_hooked():
    assert "AssertionError" in end(start(["-c", HOOKED]))[2]
