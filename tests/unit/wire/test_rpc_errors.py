"""The one mapping between our errors and gRPC's status codes is complete, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from actors.errors import PeerError, PeerTimeout, PeerUnavailable, ProtocolError, StaleEpoch
from actors.rpc import BROKEN_OFF, ERROR_OF_STATUS, STATUS_OF_ERROR, abort, peer_error


class Failure:
    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details


class Aborted(Exception):
    pass


class Context:
    """As much of a servicer's context as `abort` needs; a real one raises as well."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


def error_tree(root: type[PeerError] = PeerError) -> Iterator[type[PeerError]]:
    yield root
    for child in root.__subclasses__():
        yield from error_tree(child)


def test_the_walk_finds_the_tree() -> None:
    assert {PeerError, PeerUnavailable, PeerTimeout, StaleEpoch, ProtocolError} <= set(error_tree())


def test_every_peer_error_has_a_status_of_its_own() -> None:
    ours = [error for error in error_tree() if error.__module__ == "actors.errors"]
    assert set(STATUS_OF_ERROR) == set(ours)
    assert len(set(STATUS_OF_ERROR.values())) == len(ours)


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_status_has_an_error(code: grpc.StatusCode) -> None:
    assert issubclass(ERROR_OF_STATUS[code], PeerError)


@pytest.mark.parametrize("kind", STATUS_OF_ERROR)
def test_an_error_comes_back_as_itself_with_its_text(kind: type[PeerError]) -> None:
    with pytest.raises(Aborted) as sent:
        abort(Context(), kind("epoch 3 is over, 4 runs"))
    code, details = sent.value.args
    received = peer_error(Failure(code, details), "127.0.0.1:9")
    assert type(received) is kind
    assert str(received) == "127.0.0.1:9: epoch 3 is over, 4 runs"


def test_a_failure_without_text_is_named_by_its_code() -> None:
    assert str(peer_error(Failure(grpc.StatusCode.DATA_LOSS, None), "peer")) == "peer: data_loss"


def test_a_stream_that_breaks_while_it_is_written_to_is_a_peer_that_is_gone() -> None:
    broken = Failure(grpc.StatusCode.INTERNAL, BROKEN_OFF)
    assert type(peer_error(broken, "a:1")) is PeerUnavailable
