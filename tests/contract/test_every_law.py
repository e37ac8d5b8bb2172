"""Every registered scheme, on every model where it is defined, obeys every law in the law's own case."""

from __future__ import annotations

import pytest

from hf_posenc import laws
from hf_posenc.laws import LAWS, Pair

from .matrix import EVERY


@pytest.mark.parametrize("pair", EVERY, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, pair: Pair) -> None:
    laws.assert_holds(law, pair)
