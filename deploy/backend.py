"""What the HTTP face needs from whatever generates: a protocol, and a description of the model.

The request manager stands behind it, in this process or behind a Ray Serve handle; tests put a
scripted one there. Token IDs only: text is made and read at the ingress.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from actors.errors import UnavailableError
from actors.request_manager.generation import FinishReason, GenerationEvent, GenerationRequest
from actors.sampling import Range
from cluster.metrics_server import Target


@dataclass(frozen=True)
class BackendDescription:
    """What is served; fixed while the server runs.

    Attributes:
        model_name: what clients call the model.
        max_context_tokens: most tokens of prompt and output together.
        vocab_size: rows of the model's head; ids from 0 up to it can be sent and drawn.
        weights_hash, dtype: of the weights served, for `system_fingerprint`.
        quantization: of the weights, `none` or `int8`; told by `/v1/models`.
        drafters, verifications: names that a request may ask for.
        max_tree_nodes: most draft nodes of a step that a request may ask for.
        max_places: most requests that run or wait at one time.
        max_queued_tokens: most prompt tokens that wait at one time.
        batch_invariant: logits do not depend on what else runs, so that a seed always gives the
            same text; told by `/v1/models`.
        note: what a person should know of the model, told by `/v1/models`; None for nothing.
    """

    model_name: str
    max_context_tokens: int
    vocab_size: int
    weights_hash: str = ""
    dtype: str = ""
    quantization: str = "none"
    drafters: tuple[str, ...] = ()
    verifications: tuple[str, ...] = ("coupled",)
    max_tree_nodes: int = 1023
    max_places: int = 1 << 20
    max_queued_tokens: int = 1 << 30
    batch_invariant: bool = False
    note: str | None = None

    @property
    def tree_nodes(self) -> Range:
        """What `speculation.max_nodes` may be."""
        return Range(0, self.max_tree_nodes)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the same seed may no longer give the same text."""
        source = "\0".join((self.model_name, self.weights_hash, self.dtype, self.quantization))
        return "fp_" + hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


class Backend(Protocol):
    """Generates for the ingress."""

    @property
    def description(self) -> BackendDescription: ...

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        """Events of requests that belong together, each with its request's place, as they come.

        All of them are taken or none. The last event of a request has a finish reason. Closing the
        iterator early cancels what still runs.

        Raises (on iteration):
            InputError: a request can never succeed.
            OverloadedError: no room now.
            UnavailableError, PeerError: starting, draining, or a part of the cluster failed.
        """

    async def metrics_text(self) -> str:
        """All metrics in Prometheus' text format 0.0.4. Raises as `generate`."""

    async def targets(self) -> Sequence[Target]:
        """The processes that serve metrics of their own. Raises as `generate`."""


def require_good_end(event: GenerationEvent) -> None:
    """Raise UnavailableError if the backend gave the request up."""
    if event.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
        raise UnavailableError("the server ended this request early; it may be sent again")
