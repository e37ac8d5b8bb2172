"""Nothing here runs without accelerate."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate", reason="offloading and dispatching are accelerate's")
