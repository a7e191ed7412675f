"""Ray's errors become ours; no cluster is needed for that."""

from __future__ import annotations

import pytest
from ray import exceptions as foreign

from actors.errors import InputError, ModelError, PeerError, PeerUnavailable
from cluster import ray_api
from cluster.placement import Bundle, Placement
from cluster.ray_api import ENVIRONMENT, map_error, prepare_environment


def task_error(cause: Exception) -> Exception:
    """As a caller gets it: an exception of both kinds."""
    error = foreign.RayTaskError("start", "traceback", cause)
    return error.as_instanceof_cause()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "cause", [ModelError("damaged"), InputError("too long", "prompt", "context_length_exceeded")]
)
def test_our_own_error_comes_out_as_it_went_in(cause: Exception) -> None:
    found = map_error(task_error(cause))
    assert type(found) is type(cause)
    assert str(found) == str(cause)
    assert found.__dict__ == cause.__dict__


def test_our_own_error_may_come_unwrapped() -> None:
    error = ModelError("damaged")
    assert map_error(error) is error


def test_a_strange_error_of_an_actor_is_named() -> None:
    found = map_error(task_error(ZeroDivisionError("oops")))
    assert type(found) is PeerError
    assert "ZeroDivisionError: oops" in str(found)


@pytest.mark.parametrize(
    "error",
    [foreign.ActorDiedError(), foreign.ActorUnavailableError("gone for now\nmore", b"0" * 16)],
)
def test_a_dead_actor_is_an_unavailable_peer(error: Exception) -> None:
    found = map_error(error)
    assert type(found) is PeerUnavailable
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "error", [foreign.RaySystemError("broken"), foreign.GetTimeoutError("late")]
)
def test_every_other_error_of_ray_is_a_peer_error(error: Exception) -> None:
    assert type(map_error(error)) is PeerError


@pytest.mark.parametrize(
    "error",
    [foreign.RaySystemError("no answer"), RuntimeError("not connected"), ConnectionError("lost")],
)
def test_calls_that_ask_for_nodes_raise_our_errors(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ray.nodes", fail)
    monkeypatch.setattr("ray.cluster_resources", fail)
    monkeypatch.setattr("ray.get_runtime_context", fail)
    monkeypatch.setattr("ray.util.placement_group_table", fail)
    group = ray_api.PlacementGroup(None, None, owned=False)  # type: ignore[arg-type]
    for ask in (
        ray_api.node_resources,
        ray_api.num_gpus,
        ray_api.own_node,
        lambda: group.has_nodes({0}),
    ):
        with pytest.raises(PeerError, match=str(error)):
            ask()


def test_what_is_missing_comes_out_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.nodes", list)
    with pytest.raises(PeerUnavailable, match="no room"):
        ray_api.require_room(
            Placement(Bundle("manager", {"CPU": 1.0}), (Bundle("LLM", {"CPU": 1.0}),))
        )


def test_the_environment_asks_for_loopback_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "RAY_AUTH_TOKEN", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that the old value comes back afterwards
        monkeypatch.delenv(name)
    import os

    prepare_environment()
    first = os.environ["RAY_AUTH_TOKEN"]
    assert len(first) >= 32
    assert os.environ["RAY_AUTH_MODE"] == "token"
    prepare_environment()
    assert os.environ["RAY_AUTH_TOKEN"] == first
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    prepare_environment()
    assert "RAY_AUTH_TOKEN" not in os.environ
