"""Resident memory of this process, and its peak (high-water mark), as the Linux kernel counts them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # `man 5 proc`, since Linux 4.0


def reset_peak() -> bool:
    """Let the peak count from here; whether the system can: elsewhere, or where it is not allowed, it cannot."""
    with suppress(OSError):
        CLEAR.write_text(RESET_PEAK)
        return peak() is not None
    return False


def peak() -> int | None:
    """The most resident memory since `reset_peak`, in bytes; None where the system does not tell."""
    return _status("VmHWM")


def resident() -> int | None:
    """Resident memory now, in bytes; None where the system does not tell."""
    return _status("VmRSS")


def _status(field: str) -> int | None:
    with suppress(OSError, ValueError):
        fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        return 1024 * int(fields[field].split()[0]) if field in fields else None
    return None
