"""A torch process group of several processes, over NCCL or gloo, that DeepSpeed works in.

Sockets are opened on the interface of the address at which the processes meet, and on no other.
What a process waits for in vain raises after a time. Each process sees its own device only.

DeepSpeed's shared-memory all-reduce is not used: it ignores groups, and spins while it waits on
cores that the other processes need.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import timedelta
from typing import Any

import psutil
import torch

from actors.errors import PeerUnavailable
from actors.meeting import Meeting

SHARED_MEMORY_OP = "deepspeed_shm_comm"

Foreign = Any
"""An object of torch's that is not typed."""


def join_group(
    meeting: Meeting, rank: int, num_processes: int, timeout_s: float, device: torch.device
) -> Foreign:
    """Meet the others; once for a process.

    Args:
        timeout_s: how long they may take to come, and each time until they do their part.
        device: of the tensors that are exchanged.

    Returns:
        The group's key-value store.

    Raises:
        PeerUnavailable: they did not come in time.
    """
    _prepare(device, own_address(meeting))
    import deepspeed
    from torch import distributed

    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]  # it is public
            meeting.host,
            meeting.port,
            num_processes,
            rank == 0,
            timeout,
            wait_for_workers=False,
            master_listen_fd=meeting.listener,
        )
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=num_processes, timeout=timeout
        )
        deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
    except RuntimeError as error:
        raise PeerUnavailable(f"rank {rank} did not meet the others: {error}") from error
    return store


def own_address(meeting: Meeting) -> str:
    """This machine's address on the way to where the processes meet; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meeting.host, meeting.port))
        return str(probe.getsockname()[0])


def _prepare(device: torch.device, address: str) -> None:
    """What DeepSpeed and the backends read from the environment."""
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ.setdefault("LOCAL_RANK", "0")
    interface = _interface(address)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def _interface(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return name
    raise PeerUnavailable(f"no network interface has the address {address}")
