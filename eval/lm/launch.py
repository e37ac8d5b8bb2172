"""Evaluation in several processes: each scores its share of the documents, the first has the results.

    accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli eval …     GPUs, or without any CPU processes
    torchrun --nproc-per-node 2 -m hf_posenc.cli eval …                         the same
    mpirun -n 2 python -m hf_posenc.cli eval …                                  the same

lm-eval's ``hf`` shares work among GPUs only: on CPU each process scores every document. ``accelerate launch --cpu
--num_processes 2`` without an MPI host file starts a single process, which then does all the work.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch

SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where torchrun, Intel MPI, Open MPI and MVAPICH put the number of processes."""


def processes() -> int:
    """Number of processes launched together."""
    return max(int(os.environ.get(name) or 1) for name in SIZES)


def accelerator() -> Any:
    """Accelerator of a launch of several processes; None for a single process.

    Without a GPU accelerate needs ``cpu=True``, or each process would take itself for the only one.
    """
    if processes() < 2:
        return None
    from accelerate import Accelerator

    joined_before = torch.distributed.is_initialized()
    found = Accelerator(cpu=not torch.accelerator.is_available())
    if not joined_before:
        atexit.register(leave)
    return found if found.num_processes > 1 else None


def leave() -> None:
    """Destroy the process group before Python exits: its threads would abort the process otherwise."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def share(lm: Any, found: Any) -> None:
    """Set rank and world size of ``lm``, by which lm-eval distributes documents."""
    lm.accelerator = found
    lm._rank, lm._world_size = found.process_index, found.num_processes


def from_first(lm: Any, value: Any) -> Any:
    """Broadcast the value of the first process to all processes."""
    if lm.world_size < 2:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
