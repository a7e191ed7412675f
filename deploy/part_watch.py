"""What has become of the server's parts, in plain lines: which has failed, and when it is back.

Looks from outside, at `/metrics` over HTTP: who does not answer has failed; of the actors behind
the request manager the manager itself tells. A server that is only slow to answer is not judged.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from actors.errors import PeerTimeout, PeerUnavailable, UnavailableError
from cluster.metrics import Part

READ_TIMEOUT_S = 5.0
INGRESS = Part("Ingress")
MANAGER = Part("RequestManager")
NAMES: Mapping[str, str] = {
    INGRESS.kind: "The HTTP ingress",
    MANAGER.kind: "The request manager, and the LLM with it,",
    "LLMRank": "The LLM",
    "DraftModel": "The draft model",
}


@dataclass(frozen=True)
class PartState:
    """Whether a part is up now, and how often it has failed."""

    is_up: bool
    num_failures: int = 0


def read_metrics(url: str) -> str:
    """What a server's `/metrics` says.

    Raises:
        PeerUnavailable: nobody answers.
        UnavailableError: the ingress answers, but has no request manager.
        PeerTimeout: no answer in time, or half of one.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url}/metrics", timeout=READ_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise UnavailableError("the request manager is gone") from error
        raise PeerTimeout(f"status {error.code}") from error
    except (TimeoutError, http.client.HTTPException) as error:
        raise PeerTimeout("no whole answer in time") from error
    except OSError as error:
        if isinstance(getattr(error, "reason", None), TimeoutError):
            raise PeerTimeout("no answer in time") from error
        raise PeerUnavailable("nobody answers") from error


def states_of(metrics: str) -> dict[Part, PartState]:
    """The actors behind a request manager."""
    up: dict[Part, bool] = {}
    failures: dict[Part, int] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "treeserve_part_up":
                up[_actor(sample)] = sample.value > 0
            elif sample.name == "treeserve_part_failures_total":
                failures[_actor(sample)] = int(sample.value)
    return {part: PartState(is_up, failures.get(part, 0)) for part, is_up in up.items()}


def _actor(sample: Sample) -> Part:
    labels = sample.labels
    return Part(labels["part"], labels["drafter"], int(labels["index"]))


def name_of(part: Part, parts: Collection[Part]) -> str:
    """What a part is called, as exactly as is needed to tell it from the other ones."""
    name = NAMES.get(part.kind, part.kind)
    alike = [other for other in parts if other.kind == part.kind and other != part]
    if alike:
        name += f" {part.drafter}"
    if any(other.drafter == part.drafter for other in alike):
        name += f" replica {part.replica}"
    return name


class PartWatch:
    """Compares what it sees with what it saw.

    Args:
        read: gives the server's metrics; raises as `read_metrics`.
        say: is given each line.
    """

    def __init__(self, read: Callable[[], str], say: Callable[[str], None]) -> None:
        self._read = read
        self._say = say
        self._known: dict[Part, PartState] = {}

    def look(self) -> None:
        """Tell what has changed since the last look."""
        seen = {INGRESS: PartState(True)}
        try:
            seen |= {MANAGER: PartState(True), **states_of(self._read())}
        except PeerTimeout:
            return
        except PeerUnavailable:
            seen = {INGRESS: PartState(False)}
        except UnavailableError:
            seen |= {MANAGER: PartState(False)}
            # Its actors end with it, and those of the next one begin to count anew.
            self._known = {part: self._known[part] for part in self._known if part in seen}
        for part, state in seen.items():
            self._tell(name_of(part, seen), self._known.get(part, PartState(True)), state)
        self._known |= seen

    def _tell(self, name: str, before: PartState, now: PartState) -> None:
        if before.is_up and not now.is_up:
            self._say(f"{name} has failed and is being started again")
        elif now.is_up and not before.is_up:
            self._say(f"{name} is back")
        elif now.is_up and now.num_failures > before.num_failures:
            self._say(f"{name} had failed and is back")
