"""A process's metrics at an address of their own; the sockets are faked."""

from __future__ import annotations

import socket

import pytest

from actors.errors import UnavailableError
from cluster import metrics_server
from cluster.metrics_server import ExposedActor, MetricsServer, process_registry
from cluster.ray_actors import Addresses


class FakeServer:
    """Stands for the HTTP server of the standard library."""

    taken: set[int]

    def __init__(self, address: tuple[str, int], handler: type) -> None:
        if address[1] in self.taken:
            raise OSError("in use")
        self.server_port = address[1]

    def serve_forever(self) -> None: ...

    def shutdown(self) -> None: ...

    def server_close(self) -> None: ...


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that somebody listens on."""
    ports: set[int] = set()
    monkeypatch.setattr(FakeServer, "taken", ports, raising=False)
    monkeypatch.setattr(metrics_server, "ThreadingHTTPServer", FakeServer)
    return ports


def test_the_first_free_port_is_taken(taken: set[int]) -> None:
    taken.add(9100)
    server = MetricsServer(process_registry("llm"), "127.0.0.1", range(9100, 9103))
    assert server.address == "127.0.0.1:9101"
    server.close()


def test_no_free_port_is_an_error_that_names_the_setting(taken: set[int]) -> None:
    taken.add(9100)
    with pytest.raises(UnavailableError, match="port_range"):
        MetricsServer(process_registry("llm"), "127.0.0.1", [9100])


def test_whoever_listens_on_all_addresses_gives_one_that_can_be_reached(
    taken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "pod")
    monkeypatch.setattr(socket, "gethostbyname", {"pod": "10.0.0.7"}.get)
    server = MetricsServer(process_registry("llm"), "0.0.0.0", [9100])
    assert server.address == "10.0.0.7:9100"
    server = MetricsServer(process_registry("llm"), "0.0.0.0", [9101], "10.0.0.8")
    assert server.address == "10.0.0.8:9101"


def test_an_actor_gives_both_of_its_addresses(taken: set[int]) -> None:
    class Actor:
        def start(self, host: str) -> str:
            return f"{host}:50051"

    metrics = MetricsServer(process_registry("ssm"), "127.0.0.1", [9100])
    addresses = ExposedActor(Actor(), metrics).start("127.0.0.1")
    assert addresses == Addresses(service="127.0.0.1:50051", metrics="127.0.0.1:9100")


def test_a_process_says_what_it_is_and_what_it_takes() -> None:
    registry = process_registry("llm", 3)
    labels = {"part": "llm", "index": "3"}
    assert registry.get_sample_value("treeserve_process_info", labels) == 1
    assert registry.get_sample_value("process_resident_memory_bytes") > 1e6
