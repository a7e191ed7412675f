"""How the ranks of one LLM reach each other: `deepspeed.comm` over NCCL or gloo.

All ranks take every step in the same order, so each call here meets its counterpart on the other
ranks. What a rank waits for in vain raises after a time.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import torch
from torch import Tensor

from actors.errors import PeerUnavailable
from actors.llm.parallel.grid import Grid
from actors.meeting import Meeting
from actors.process_group import join_group, own_address

Foreign = Any
"""Objects of DeepSpeed and of torch's process groups, which are not typed."""


class World:
    """The ranks of one LLM, as one of them sees them; implements `Peers`. One for a process.

    Args:
        grid: the place of this rank.
        stage_group: the ranks of its stage.
        num_local: how many of all ranks are on this machine.
        device: of the tensors that are exchanged.
    """

    are_none = False

    def __init__(
        self, grid: Grid, stage_group: Foreign, num_local: int, device: torch.device
    ) -> None:
        import deepspeed.comm

        self.grid = grid
        self.stage_group = stage_group
        self.num_local = num_local
        self._device = device
        self._comm = deepspeed.comm
        self._shards = grid.stages[grid.stage]
        self._waited_s = 0.0
        self._sending: deque[tuple[Foreign, Tensor]] = deque()

    @classmethod
    def of_one(cls, device: torch.device) -> World:
        """A rank that is all of its LLM, and exchanges nothing."""
        return cls(Grid(1, 1, 0), None, 1, device)

    @classmethod
    def join(cls, grid: Grid, meeting: Meeting, timeout_s: float, device: torch.device) -> World:
        """Meet the other ranks; returns when all have come.

        Args:
            timeout_s: how long they may take to come, and each time until they do their part.

        Raises:
            PeerUnavailable: they did not come in time.
        """
        store = join_group(meeting, grid.rank, grid.num_ranks, timeout_s, device)
        import deepspeed.comm

        try:
            groups = [deepspeed.comm.new_group(ranks) for ranks in grid.stages]
            num_local = _count_local(store, grid, own_address(meeting))
        except RuntimeError as error:
            raise PeerUnavailable(f"{grid} did not meet the other ranks: {error}") from error
        return cls(grid, groups[grid.stage], num_local, device)

    def sum(self, rows: Tensor) -> Tensor:
        """What the shards of this stage have, added up; may change `rows`.

        On CPUs everyone sends to everyone and adds in the order of the shards: less than half the
        time of gloo's all-reduce for the rows of a step, and a row's sum does not depend on how
        many rows there are, nor does it differ between shards.
        """
        if self._device.type == "cuda":
            self._comm.inference_all_reduce(rows, group=self.stage_group)
            return rows
        parts = [
            rows if rank == self.grid.rank else torch.empty_like(rows) for rank in self._shards
        ]
        others = [pair for pair in zip(self._shards, parts, strict=True) if pair[1] is not rows]
        running = [self._comm.irecv(part, rank) for rank, part in others]
        running += [self._comm.isend(rows, rank) for rank, _ in others]
        for transfer in running:
            transfer.wait()
        exact = torch.promote_types(rows.dtype, torch.float32)
        total = parts[0].to(exact, copy=True)
        for part in parts[1:]:
            total += part
        return total.to(rows.dtype)

    def pass_on(self, rows: Tensor) -> None:
        """Begin to send to the next stage; the rows must not be changed afterwards.

        At most one step for each stage is under way, so what was sent so many steps ago has
        arrived.
        """
        if len(self._sending) >= self.grid.pipeline_parallel:
            self._sending.popleft()[0].wait()
        self._sending.append((self._comm.isend(rows, self.grid.next), rows))

    def receive(self, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """[rows, width] from the stage before."""
        since = time.perf_counter()
        rows = torch.empty(num_rows, width, dtype=dtype, device=self._device)
        self._comm.recv(rows, self.grid.previous)
        self._waited_s += time.perf_counter() - since
        return rows

    def take_waited_s(self) -> float:
        """Seconds spent waiting for the stage before since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def gather(self, columns: Tensor, widths: list[int]) -> Tensor:
        """Columns of all shards of the last stage, side by side on the rank that answers.

        Args:
            columns: [rows, widths[shard]].

        Returns:
            [rows, sum of widths]; [0, sum of widths] on the other ranks.
        """
        *others, last = self.grid.stages[-1]
        if self.grid.rank != last:
            self._comm.send(columns.contiguous(), last)
            return columns.new_empty(0, sum(widths))
        parts = []
        for rank, width in zip(others, widths, strict=False):
            part = columns.new_empty(len(columns), width)
            self._comm.recv(part, rank)
            parts.append(part)
        return torch.cat([*parts, columns], 1)

    def least(self, value: int) -> int:
        """The least of all ranks' values."""
        values = torch.tensor([value], device=self._device)
        self._comm.all_reduce(values, self._comm.ReduceOp.MIN)
        return int(values)


def _count_local(store: Foreign, grid: Grid, address: str) -> int:
    """How many ranks share this machine."""
    store.set(f"address-{grid.rank}", address)
    addresses = [store.get(f"address-{rank}").decode() for rank in range(grid.num_ranks)]
    return Counter(addresses)[address]
