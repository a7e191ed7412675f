"""Request managers behind a Ray Serve handle, told apart by the ids of their replicas.

Serve would send each call to whichever replica has the least to do; a session is with one of them.
So a handle is told whom it is for, in the field that Serve has for sticky sessions, and the router
of the deployment heeds that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from actors.errors import TreeServeError, UnavailableError
from cluster import ray_api
from deploy.manager_link import Manager

ROLL_CALL_TIMEOUT_S = 5.0


class ToOneManager(RequestRouter):  # type: ignore[misc]  # Serve is not typed here
    """Sends a call to the replica that it is for, and to no other."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return []
        wanted = pending_request.metadata.session_id
        found = [one for one in candidate_replicas if one.replica_id.unique_id == wanted]
        # Else Serve would ask again at once, and never let go of the event loop.
        pending_request.routing_context.should_backoff = not found
        return [found]


class ManagerHandles:
    """Handles of single managers.

    Args:
        handle: of the deployment.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self.one = functools.lru_cache(maxsize=256)(self._one)
        """The handle of the manager with this id."""
        self.stream = functools.lru_cache(maxsize=256)(self._stream)
        """The same for calls that answer with a stream."""

    def _one(self, manager_id: str) -> DeploymentHandle:
        return self._handle.options(session_id=manager_id)

    def _stream(self, manager_id: str) -> DeploymentHandle:
        return self._handle.options(session_id=manager_id, stream=True)

    async def roll_call(self) -> Sequence[Manager | None]:
        """All managers that take requests, None for each that does not answer; see `Transport`."""
        try:
            called = self._handle.broadcast("describe")
            answers = await called.results_async(
                timeout_s=ROLL_CALL_TIMEOUT_S, return_exceptions=True
            )
        except DeploymentUnavailableError:
            return []
        except TimeoutError:
            return [None]
        return [answer if isinstance(answer, Manager) else None for answer in answers]


def map_error(error: Exception) -> TreeServeError:
    """One of our errors for one of Ray Serve's."""
    if isinstance(error, RayServeException):
        return UnavailableError(f"the request manager cannot be reached: {error}")
    return ray_api.map_error(error)
