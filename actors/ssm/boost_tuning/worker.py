"""One of the processes that train a draft model side by side, each on a device of its own."""

from __future__ import annotations

import torch

from actors.meeting import Meeting
from actors.process_group import join_group
from actors.ssm.boost_tuning.lesson import Lesson
from actors.ssm.boost_tuning.recipe import Progress
from actors.ssm.boost_tuning.replica import DeepSpeedReplica

GROUP_TIMEOUT_S = 300.0
"""What one may take to read its records while the others wait for it."""


class TrainingWorker:
    """Meets the other workers and reads what to learn; then trains when it is asked to.

    Args:
        lesson: the same for all.
        rank, num_workers: which one of how many this is.
        device: to train on.
        num_threads: on a CPU.
        meeting: where they meet.

    Raises:
        PeerUnavailable: the others did not come.
        InputError, ModelError: the lesson cannot be used.
    """

    def __init__(
        self,
        lesson: Lesson,
        rank: int,
        num_workers: int,
        device: torch.device,
        num_threads: int,
        meeting: Meeting,
    ) -> None:
        torch.set_num_threads(num_threads)
        join_group(meeting, rank, num_workers, GROUP_TIMEOUT_S, device)
        self._trainer = lesson.trainer(DeepSpeedReplica, device)
        self._steps = self._trainer.run()

    def advance(self, seconds: float) -> Progress:
        """Train for so long, or to the end; all workers end with the same step."""
        until_s = self._trainer.progress.trained_s + seconds
        for progress in self._steps:
            if progress.trained_s >= until_s:
                break
        return self._trainer.progress
