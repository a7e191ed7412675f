"""`treeserve serve`: a cluster with the application on it, until a signal comes.

When a part has failed, a line says so, and another when it is back. SIGHUP has the draft models
exchanged for those that the configuration file names by then.

The address is printed only after a token has come through the real HTTP path. Ctrl-C and SIGTERM
bring everything down, also while it is starting: answers that have begun get a few seconds to end
after Ctrl-C, and `api.drain_timeout_s` after SIGTERM, which is how machines stop a server. A signal
during the short stretches that must not be cut in two (Ray's own start) waits for their end.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import shlex
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from actors.errors import PeerError, TreeServeError
from cluster import daemons, ray_api
from cluster.config import Config, load_config, with_address
from cluster.models import resolve_model
from cluster.placement import plan_placement
from cluster.tokenizer import has_chat_template
from deploy.api_keys import read_keys
from deploy.environment import prepare_environment
from deploy.http_server import bound_socket
from deploy.named_files import check_files, load_with_files
from deploy.part_watch import PartWatch, read_metrics
from deploy.swap_command import report

PROBE_TIMEOUT_S = 120.0
INTERRUPT_GRACE_S = 5.0
"""For answers that have begun, after Ctrl-C."""
WATCH_S = 2.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes.

    Raises:
        TreeServeError: the server cannot be started.
        SystemExit: it cannot go on; why has been said.
    """
    config = with_address(load_with_files(arguments.config), arguments.host, arguments.port)
    # What cannot work is told of now rather than in a minute.
    found = check_files(config)
    bound_socket(config.api.host, config.api.port).close()
    with Signals() as signals:
        started_s = time.monotonic()
        folder = found or resolve_model(config.model.path)
        if found is None:
            check_files(config, folder)
        key = read_keys(Path(config.api.api_keys_file))[0] if config.api.api_keys_file else None
        with _serving(config, signals):
            _first_token(config, key)
            with contextlib.suppress(KeyboardInterrupt):
                _announce(config, has_chat_template(folder), time.monotonic() - started_s)
                parts = PartWatch(functools.partial(read_metrics, _url(config)), _say)
                hangups = Hangups()
                while daemons.are_alive():
                    parts.look()
                    if hangups.take():
                        _swap_draft_models(arguments.config)
                    time.sleep(WATCH_S)
                # Said before the rest is taken down: Ray may end this process on the way.
                _say("treeserve: Ray's daemons have died; nothing can be served any more")
                raise SystemExit(1)
            _say("Shutting down")
    return 0


class Signals:
    """The first SIGINT or SIGTERM as KeyboardInterrupt, once it is not held; later ones do nothing:
    everything is coming down already."""

    def __init__(self) -> None:
        self._held = False
        self._pending = False
        self.number: int | None = None
        """Of the first signal."""
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            self._previous[number] = signal.getsignal(number)
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A signal that comes inside is raised at the end.

        Handlers that were put in place inside, as Ray does, are replaced by ours again.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._install()
        if self._pending:
            self.ignore()
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on signals do nothing."""
        self._held = True

    def _install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        self.number = self.number or number
        if not self._held:
            self.ignore()
            raise KeyboardInterrupt


class Hangups:
    """SIGHUP from now on: whether one has come."""

    def __init__(self) -> None:
        self._has_come = False
        signal.signal(signal.SIGHUP, self._on_signal)

    def take(self) -> bool:
        """True if one has come since this was last asked."""
        has_come, self._has_come = self._has_come, False
        return has_come

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True


def _swap_draft_models(path: Path) -> None:
    """Read the configuration again, and have its draft models take over; tells what came of it."""
    from deploy import running

    _say(f"Exchanging the draft models for those of {path}")
    try:
        config = load_config(path)
        running.swap_draft_models(config.ssms)
    except TreeServeError as error:
        for line in str(error).splitlines():
            _say(f"treeserve: {line}")
        _say("The draft models have stayed as they were")
    else:
        _say(report(config))


@contextlib.contextmanager
def _serving(config: Config, signals: Signals) -> Iterator[None]:
    """The application, up; down again on leaving, however it is left."""
    prepare_environment()
    ray_api.prepare_environment()
    _say("Starting Ray")
    try:
        with signals.held():
            ray_api.start_cluster(plan_placement(config).num_cpus * config.llm.replicas.max)
            from deploy import running
        _say(f"Loading {config.model.name}")
        running.start_serving(config)
        yield
        signals.ignore()
        terminated = signals.number == signal.SIGTERM
        with _quiet():
            running.stop_serving(config.api.drain_timeout_s if terminated else INTERRUPT_GRACE_S)
    finally:
        signals.ignore()
        with _quiet():
            ray_api.stop_cluster()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray complains of the end of Serve's controller, which ends itself."""
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


def _first_token(config: Config, key: str | None) -> None:
    """Ask for one token over HTTP, as a client would."""
    body = {"model": config.model.name, "prompt": "Hello", "max_tokens": 1}
    request = urllib.request.Request(
        f"{_url(config)}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=PROBE_TIMEOUT_S) as answer:
            usage = json.load(answer)["usage"]
    except (OSError, ValueError, KeyError) as error:
        raise PeerError(f"the server does not answer: {error}") from error
    if usage["completion_tokens"] != 1:
        raise PeerError("the server answers, but without a token")


def _announce(config: Config, chat: bool, seconds: float) -> None:
    question = "Name the planets of the solar system."
    body: dict[str, object] = {"model": config.model.name, "max_tokens": 64, "temperature": 0}
    if chat:
        path, body["messages"] = "chat/completions", [{"role": "user", "content": question}]
    else:
        path, body["prompt"] = "completions", question
    print(f"{config.model.name} is served at {_url(config)} (ready after {seconds:.0f} s)")
    key = "-H 'Authorization: Bearer YOUR_API_KEY' " if config.api.api_keys_file else ""
    print(
        f"curl {_url(config)}/v1/{path} -H 'Content-Type: application/json' {key}"
        f"-d {shlex.quote(json.dumps(body))}",
        flush=True,
    )


def _url(config: Config) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.api.host, config.api.host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{config.api.port}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
