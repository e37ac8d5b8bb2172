"""Leaderboard: schemes on models by effective context length, loss, retrieval and cost; made of compared cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_posenc.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hf_posenc.insight.leaderboard.board import Leaderboard as Leaderboard
    from hf_posenc.insight.leaderboard.board import read_leaderboard as read_leaderboard
    from hf_posenc.insight.leaderboard.run import leaderboard as leaderboard

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hf_posenc.insight.leaderboard.board": ("Leaderboard", "read_leaderboard"),
        "hf_posenc.insight.leaderboard.run": ("leaderboard",),
    },
)
