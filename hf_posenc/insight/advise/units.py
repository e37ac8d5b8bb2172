"""Format sizes and ratios: ``0.5 MiB``, ``262,144``."""

from __future__ import annotations

BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Bytes in the largest binary unit of which there is at least one: ``"512 KiB"``, ``"12.6 GiB"``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(BINARY) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {BINARY[unit]}" if value == int(value) or value >= 100 else f"{value:.1f} {BINARY[unit]}"


def ratio(value: float) -> str:
    """A ratio to four digits, and a large one as a whole number: ``"2.667"``, ``"262,144"``."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
