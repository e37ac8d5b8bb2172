"""Skip this folder if accelerate is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate", reason="offloading and dispatching are accelerate's")
