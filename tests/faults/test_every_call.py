"""Fail at the first I/O call, the second, … until an operation succeeds: no state in between loses data.

The old result is there byte for byte, no other file is left, and a repetition gives the new result byte for byte.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from hf_posenc.core.files import atomic
from hf_posenc.errors import PosEncError

from .faulty import ERRNOS, FaultyIO
from .operations import NEW, OLD, OPERATIONS, Operation, contents

LEAST, MOST = 400, 200
INJECTED: Counter[tuple[str, str]] = Counter()


def injected(operation: Operation, folder: Path, old: Path) -> Iterator[tuple[int, FaultyIO, BaseException | None]]:
    """Every failure of the operation over the old result; None where it went on without what failed."""
    for n in range(1, MOST):
        for number in ERRNOS if not operation.dear else ERRNOS[n % len(ERRNOS) :][:1]:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(old, folder)
            found = None
            with FaultyIO(folder, n, number) as faults:
                try:
                    operation.write(folder, NEW)
                except (OSError, SafetensorError, PosEncError) as error:
                    found = error
            if faults.failed is None:
                return
            yield n, faults, found
    raise AssertionError(f"{operation.name} makes more than {MOST} calls")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_failure_at_any_call_loses_nothing(operation: Operation, tmp_path: Path) -> None:
    old, new, folder = tmp_path / "old" / "run", tmp_path / "new" / "run", tmp_path / "here" / "run"
    old.mkdir(parents=True)
    operation.write(old, OLD)
    shutil.copytree(old, new)
    operation.write(new, NEW)
    before, after = contents(old), contents(new)
    assert before != after, "control: the two results differ"
    before_content, after_content = operation.opens(old), operation.opens(new)
    for n, faults, error in injected(operation, folder, old):
        where = f"{operation.name}: {errno.errorcode[faults.number]} at call {n}, {faults.failed}: {error}"
        assert contents(folder) == (after if error is None else before), where
        if error is not None and n % (11 if operation.dear else 3) == 1:
            assert same(operation.opens(folder), before_content, old, folder), where
            operation.write(folder, NEW)
            assert contents(folder) == after, where
            assert same(operation.opens(folder), after_content, new, folder), where
        INJECTED[operation.name, errno.errorcode[faults.number]] += 1
    assert contents(folder) == after


def same(one: object, other: object, output: Path, folder: Path) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)  # type: ignore[arg-type]
    if isinstance(one, str):  # a path
        return Path(one).relative_to(folder) == Path(str(other)).relative_to(output)
    return one == other


def test_the_loop_was_long_enough(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of what was injected; run alone, there is nothing to count."""
    if {name for name, _ in INJECTED} != {operation.name for operation in OPERATIONS}:
        pytest.skip("counts what all the tests above injected, in one process")
    with capsys.disabled():
        print(f"\n{'operation':30}" + "".join(f"{errno.errorcode[n]:>8}" for n in ERRNOS))  # noqa: T201
        for operation in OPERATIONS:
            counts = [INJECTED[operation.name, errno.errorcode[number]] for number in ERRNOS]
            print(f"{operation.name:30}" + "".join(f"{count:8}" for count in counts))  # noqa: T201
        print(f"{INJECTED.total()} failures injected, 0 corrupt")  # noqa: T201
    assert INJECTED.total() >= LEAST


def test_the_loop_finds_what_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the same operations, writing straight to the place."""
    monkeypatch.setattr(atomic, "write_bytes", lambda path, data: Path(path).write_bytes(data))
    operation = Operation("careless", lambda folder, which: atomic.write_json(folder / "a.json", {"which": which}))
    with pytest.raises(AssertionError, match="careless"):
        test_a_failure_at_any_call_loses_nothing(operation, tmp_path)
