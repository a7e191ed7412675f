"""`treeserve serve` and `generate` as a person runs them: up, a token, down, nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import pytest
from conftest import CONFIG, PATIENCE_S, wait_until

from actors.errors import UnavailableError
from cluster.bench.server import free_port
from deploy.http_server import bound_socket
from tests.processes import descendants

pytestmark = [pytest.mark.integration]

ROOT = Path(__file__).resolve().parents[2]
MARK = "TREESERVE_TEST_MARK"


class Command:
    """A `treeserve` process, and whatever it starts."""

    def __init__(self, *arguments: str) -> None:
        self._mark = uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", *arguments],
            cwd=ROOT,
            env=os.environ | {MARK: self._mark, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def interrupt(self) -> None:
        """As a terminal does: to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait_for(self, pipe: str, text: str) -> str:
        """The next line with this text; fails at the end of the output."""
        stream = getattr(self.process, pipe)
        for line in stream:
            if text in line:
                return str(line)
        raise AssertionError(f"{text!r} was not written; {self.process.communicate()}")

    def kill_part(self, title: str) -> None:
        """Kill the actor that process lists show under this title."""
        (part,) = descendants(title, self.process.pid)
        part.kill()

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """What still runs of it."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(" ".join(process.cmdline()))
        return found


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.process.kill()
        command.process.communicate()


def start(commands: list[Command], *arguments: str) -> Command:
    commands.append(Command(*arguments))
    return commands[-1]


def start_server(commands: list[Command], port: int, config: Path = CONFIG) -> Command:
    """A server that has said that it is up."""
    command = start(commands, "serve", str(config), "--port", str(port))
    assert f"http://127.0.0.1:{port}" in command.wait_for("stdout", "is served at")
    return command


@pytest.mark.model
def test_up_a_token_and_down(commands: list[Command], smollm2_path: Path) -> None:
    """And in between parts fail: the terminal tells which, and when they are back. After a hangup
    it tells which draft models have taken over."""
    port = free_port()
    command = start_server(commands, port)
    curl = command.wait_for("stdout", "curl")
    answer = subprocess.run(
        ["bash", "-c", curl.replace("curl", "curl -sS", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Jupiter" in json.loads(answer.stdout)["choices"][0]["message"]["content"]

    command.kill_part("LLMRank")
    with streaming(port, 4) as lines:  # whoever waits for a token notices first
        assert "data: [DONE]" in list(lines)
    assert command.wait_for("stderr", "is back").startswith("The LLM ")
    command.kill_part("RequestManager")
    assert command.wait_for("stderr", "has failed").startswith("The request manager")
    assert command.wait_for("stderr", "is back").startswith("The request manager")

    command.process.send_signal(signal.SIGHUP)
    assert command.wait_for("stderr", "Draft models").endswith(" embedded:smollm2-135m/ssm-0\n")

    command.interrupt()
    assert command.finish() == (0, "", "Shutting down\n")
    assert command.left() == []


@contextlib.contextmanager
def streaming(port: int, max_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of a stream."""
    body = {
        "model": "smollm2-135m-instruct",
        "prompt": "Once",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    url = f"http://127.0.0.1:{port}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S, trust_env=False) as answer:
        yield answer.iter_lines()


@pytest.mark.model
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stream_that_runs_is_let_end(
    number: signal.Signals, commands: list[Command], smollm2_path: Path
) -> None:
    port = free_port()
    command = start_server(commands, port)
    with streaming(port, 20) as lines:
        first = next(lines)
        command.process.send_signal(number)
        rest = list(lines)
    assert first.startswith("data: {")
    assert rest[-2:] == ["data: [DONE]", ""]
    status, _, err = command.finish()
    assert status == 0, err
    assert command.left() == []


@pytest.mark.model
def test_a_stream_that_does_not_end_in_time_is_told_so(
    commands: list[Command], smollm2_path: Path, tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "impatient.yaml"
    config.write_text(json.dumps({"api": {"drain_timeout_s": 0.5}}))
    command = start_server(commands, port, config)
    with streaming(port, 8000) as lines:
        first = next(lines)
        command.process.terminate()
        *_, last, end = lines
    assert first.startswith("data: {")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["message"] == "the server is shutting down"
    assert end == ""
    status, _, err = command.finish()
    assert status == 0, err
    assert command.left() == []


@pytest.mark.model
def test_terminated_together_with_its_cluster(commands: list[Command], smollm2_path: Path) -> None:
    """As a service manager does it: Ray then ends processes in its own way, and some a bit later
    than the command."""
    command = start_server(commands, free_port())
    os.killpg(command.process.pid, signal.SIGTERM)
    _, _, err = command.finish()
    assert "Traceback" not in err
    wait_until(lambda: command.left() == [])


@pytest.mark.model
@pytest.mark.parametrize("moment", ["Starting Ray", "Loading"])
def test_interrupted_while_it_starts(
    moment: str, commands: list[Command], smollm2_path: Path
) -> None:
    command = start(commands, "serve", str(CONFIG), "--port", str(free_port()))
    command.wait_for("stderr", moment)
    command.interrupt()
    status, out, err = command.finish()
    assert (status, out) == (1, "")
    assert "Traceback" not in err
    assert command.left() == []


def test_a_port_that_is_taken(commands: list[Command]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, out, err = start(commands, "serve", str(CONFIG), "--port", str(port)).finish()
    assert (status, out) == (1, "")
    assert err == f"treeserve: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.model
def test_memory_that_does_not_hold_a_block_is_told_of_before_anything_starts(
    commands: list[Command], smollm2_path: Path, tmp_path: Path
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(json.dumps({"scheduler": {"kv_memory_bytes": 1000}}))
    status, out, err = start(commands, "serve", str(config), "--port", str(free_port())).finish()
    assert (status, out) == (2, "")
    assert err.startswith("treeserve: scheduler.kv_memory_bytes: 1000 bytes do not hold one block")


@pytest.mark.model
def test_a_model_that_cannot_be_loaded(
    commands: list[Command], smollm2_path: Path, tmp_path: Path
) -> None:
    for source in smollm2_path.glob("*.json"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    config = tmp_path / "broken.yaml"
    config.write_text(json.dumps({"model": {"path": str(tmp_path)}}))
    command = start(commands, "serve", str(config), "--port", str(free_port()))
    status, out, err = command.finish()
    assert (status, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"treeserve: {tmp_path.name} cannot be served: ")
    assert command.left() == []


@pytest.mark.model
def test_generate(commands: list[Command], smollm2_path: Path) -> None:
    question = "What is the capital of France?"
    command = start(commands, "generate", str(CONFIG), "--prompt", question)
    status, out, err = command.finish()
    assert status == 0, err
    assert "Paris" in out
    assert err.index("Starting Ray") < err.index("Loading smollm2") < err.index("Generating")
    statistics = json.loads(err.splitlines()[-1])
    assert statistics["finish_reason"] == "stop"
    assert statistics["completion_tokens"] > 1
    assert command.left() == []


def test_a_server_can_come_back_to_its_port_at_once() -> None:
    """Connections that the server closed first linger; they must not hold the port."""
    first = bound_socket("127.0.0.1", free_port())
    host, port = first.getsockname()
    first.listen()
    with socket.create_connection((host, port)) as client:
        accepted, _ = first.accept()
        accepted.close()
        assert client.recv(1) == b""
    with pytest.raises(UnavailableError, match="already in use"):
        bound_socket(host, port)
    first.close()
    bound_socket(host, port).close()
