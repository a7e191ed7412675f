"""What the terminal says of parts that fail and come back."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from actors.errors import PeerTimeout, PeerUnavailable, UnavailableError
from cluster.bench.server import free_port
from cluster.metrics import RANKS, Metrics, Part
from deploy.part_watch import PartState, PartWatch, read_metrics, states_of

DRAFT = Part("DraftModel", "ssm")


class Server:
    """A server's metrics, and what was said of it."""

    def __init__(self):
        self.lines = []
        self.problem = None
        self.watch = PartWatch(self.read, self.lines.append)
        self.start_manager()

    def start_manager(self):
        self.metrics = Metrics(CollectorRegistry(), "tiny", parts=(RANKS, DRAFT))
        for part in (RANKS, DRAFT):
            self.metrics.part_is_up(part, True)

    def read(self):
        if self.problem is not None:
            raise self.problem
        return self.metrics.text()

    def look(self):
        self.watch.look()
        said, self.lines[:] = self.lines[:], []
        return said


@pytest.fixture
def server():
    server = Server()
    assert server.look() == []
    return server


@pytest.mark.parametrize(("part", "name"), [(RANKS, "LLM"), (DRAFT, "draft model")])
def test_an_actor_that_fails_and_comes_back(server, part, name):
    server.metrics.part_is_up(part, False)
    assert server.look() == [f"The {name} has failed and is being started again"]
    assert server.look() == []
    server.metrics.part_is_up(part, True)
    assert server.look() == [f"The {name} is back"]
    assert server.look() == []


def test_one_that_was_back_before_anybody_looked(server):
    for is_up in (False, True):
        server.metrics.part_is_up(RANKS, is_up)
    assert server.look() == ["The LLM had failed and is back"]


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (PeerUnavailable("refused"), "The HTTP ingress"),
        (UnavailableError("gone"), "The request manager, and the LLM with it,"),
    ],
)
def test_what_does_not_answer_has_failed(server, problem, name):
    server.problem = problem
    assert server.look() == [f"{name} has failed and is being started again"]
    assert server.look() == []
    server.problem = None
    server.start_manager()
    assert server.look() == [f"{name} is back"]


def test_the_actors_of_the_next_manager_count_anew(server):
    for is_up in (False, True):
        server.metrics.part_is_up(RANKS, is_up)
    server.look()
    server.problem = UnavailableError("gone")
    server.look()
    server.problem = None
    server.start_manager()
    assert server.look() == ["The request manager, and the LLM with it, is back"]
    server.metrics.part_is_up(RANKS, False)
    assert server.look() == ["The LLM has failed and is being started again"]


def test_a_server_that_is_slow_is_not_judged(server):
    server.problem = PeerTimeout("late")
    assert server.look() == []


def test_states_are_read_from_the_metrics(server):
    server.metrics.part_is_up(RANKS, False)
    assert states_of(server.read()) == {
        RANKS: PartState(False, 1),
        DRAFT: PartState(True, 0),
    }


def test_where_nobody_listens():
    with pytest.raises(PeerUnavailable):
        read_metrics(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("pool", "names"),
    [
        ([("ssm-0", 0), ("ssm-1", 0)], ["ssm-0", "ssm-1"]),
        ([("ssm", 0), ("ssm", 1)], ["ssm replica 0", "ssm replica 1"]),
        (
            [("ssm-0", 0), ("ssm-1", 0), ("ssm-1", 1)],
            ["ssm-0", "ssm-1 replica 0", "ssm-1 replica 1"],
        ),
    ],
)
def test_of_several_draft_models_it_says_which(server, pool, names):
    parts = [Part("DraftModel", *which) for which in pool]
    server.metrics = Metrics(CollectorRegistry(), "tiny", parts=(RANKS, *parts))
    for part in (RANKS, *parts):
        server.metrics.part_is_up(part, True)
    assert server.look() == []
    for part in parts:
        server.metrics.part_is_up(part, False)
    assert server.look() == [
        f"The draft model {name} has failed and is being started again" for name in names
    ]
    server.metrics.part_is_up(parts[1], True)
    assert server.look() == [f"The draft model {names[1]} is back"]
