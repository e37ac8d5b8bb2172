"""Evaluation in several processes: each scores a share of the documents, and the first collects the results.

    accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli eval …     on GPUs, or on the CPU without a GPU
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
"""Environment variables in which torchrun, Intel MPI, Open MPI and MVAPICH store the number of processes."""


def accelerator() -> Any:
    """`Accelerator` of a launch of several processes; None for a single process.

    Without a GPU, accelerate needs ``cpu=True``; otherwise each process believes that it is the only one.
    """
    if all(int(os.environ.get(name) or 1) < 2 for name in SIZES):
        return None
    from accelerate import Accelerator

    joined_before = torch.distributed.is_initialized()
    launched = Accelerator(cpu=not torch.accelerator.is_available())
    if not joined_before:
        atexit.register(leave)
    return launched if launched.num_processes > 1 else None


def leave() -> None:
    """Destroy the process group before Python exits; otherwise its threads would abort the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def from_first(lm: Any, value: Any) -> Any:
    """Broadcast the value of the first process to all processes."""
    if lm.world_size < 2:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
