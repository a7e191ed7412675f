"""The architecture as tests: direction of imports, borders of libraries, sizes, words, the map.

Each check is a function from source text to violations, and is itself tested on a planted one.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("protos", "actors", "cluster", "deploy")
ACTORS = ("request_manager", "ssm", "llm")
MAX_LINES = 400

# For each library (or layer) the files that may import it, as path prefixes.
ALLOWED_IN: dict[str, tuple[str, ...]] = {
    "ray": (
        "cluster/ray_api.py",
        "cluster/ray_actors.py",
        "deploy/app.py",
        "deploy/manager_handle.py",
        "deploy/running.py",
    ),
    "deepspeed": ("actors/llm/", "actors/process_group.py", "actors/ssm/boost_tuning/replica.py"),
    "llguidance": ("actors/grammar.py",),
    "opentelemetry": ("cluster/", "deploy/"),
    "grpc": (
        "actors/rpc.py",
        "actors/rpc_stream.py",
        "actors/model_server.py",
        "actors/llm/actor.py",
        "actors/ssm/actor.py",
        "actors/request_manager/clients.py",
        "actors/request_manager/ssm_client.py",
        "protos/",
    ),
}
PURE = "actors/request_manager/"
NOT_PURE = tuple(f"{PURE}{name}.py" for name in ("actor", "clients", "ssm_client"))
IMPURE_LIBRARIES = frozenset({"torch", "ray", "grpc", "transformers", "deepspeed", "protos"})

# Put together from parts, so that this file passes its own check.
PRIVATE_WORDS = re.compile(
    "|".join(
        [
            "/tmp" + "/w\\b",
            "/" + "work/",
            "\\bsub-?" + "agents?\\b",
            "\\bissue" + "s? #?\\d+",
            "\\bthis" + " session\\b",
            "file" + "s\\.pythonhosted",
        ]
    ),
    re.IGNORECASE,
)


def source_files() -> list[Path]:
    """Our own Python files; generated stubs are left out."""
    folders = (*LAYERS, "loadtest", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in files if "_pb2" not in path.name)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(path: str, source: str) -> Iterator[str]:
    """Dotted names of what a file imports, wherever in the file; `from a import b` gives a.b."""
    package = path.split("/")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def direction_violations(path: str, source: str) -> list[str]:
    """Imports against deploy → cluster → actors → protos, or between actors."""
    parts = path.split("/")
    found = []
    for module in imported_modules(path, source):
        names = module.split(".")
        if names[0] not in (*LAYERS, "loadtest"):
            continue
        up = names[0] != parts[0] and (
            parts[0] not in LAYERS
            or names[0] not in LAYERS
            or LAYERS.index(names[0]) > LAYERS.index(parts[0])
        )
        actor = names[1] if names[0] == "actors" and len(names) > 1 else None
        aside = parts[0] == "actors" and actor in ACTORS and actor != parts[1]
        if up or aside:
            found.append(f"{path} imports {module}")
    return found


def library_violations(path: str, source: str) -> list[str]:
    """Libraries imported where they do not belong."""
    found = []
    pure = path.startswith(PURE) and path not in NOT_PURE
    for module in imported_modules(path, source):
        library = module.split(".")[0]
        foreign = not path.startswith(ALLOWED_IN.get(library, ("",)))
        if foreign or (pure and library in IMPURE_LIBRARIES):
            found.append(f"{path} imports {module}")
    return found


def word_violations(path: str, text: str) -> list[str]:
    """Words about how the project is made, not what it is."""
    return [f"{path}: {match.group()}" for match in PRIVATE_WORDS.finditer(text)]


def unmapped(readme: str, paths: list[str]) -> list[str]:
    """Files that a README's map does not name; a name that stands n times covers n files."""
    named = Counter(re.findall(r"[\w./-]*?(\w+\.py)\b", readme))
    wanted = Counter(path.rsplit("/", 1)[-1] for path in paths)
    return sorted((wanted - named).elements())


SOURCES = [path for path in source_files() if not relative(path).startswith("tests/")]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_go_one_way(path):
    assert direction_violations(relative(path), path.read_text()) == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_libraries_stay_within_their_borders(path):
    assert library_violations(relative(path), path.read_text()) == []


@pytest.mark.parametrize("path", source_files(), ids=relative)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES


def written_files() -> list[Path]:
    """Source and documentation that people read."""
    kinds = (".md", ".toml", ".yaml", ".yml", ".proto", "Makefile", "Dockerfile")
    folders = (*LAYERS, "loadtest", "tests", "k8s", "docs")
    below = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    others = (path for path in (*ROOT.iterdir(), *below) if path.name.endswith(kinds))
    return source_files() + [path for path in others if path.is_file()]


def test_the_text_speaks_of_the_project_alone():
    found = [
        violation
        for path in written_files()
        for violation in word_violations(relative(path), path.read_text())
    ]
    assert found == []


def test_the_readme_maps_every_file():
    readme = ROOT / "README.md"
    text = readme.read_text() if readme.exists() else ""
    if not re.search(r"^#+ .*\bmap\b", text, re.IGNORECASE | re.MULTILINE):
        pytest.skip("README.md has no map yet")
    assert unmapped(text, [relative(path) for path in SOURCES if path.name != "__init__.py"]) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("actors/tree.py", "from cluster.config import Config"),
        ("actors/tree.py", "def f():\n    import deploy.app"),
        ("protos/generate.py", "import actors"),
        ("actors/ssm/actor.py", "from actors.llm.rank import Rank"),
        ("actors/llm/rank.py", "from actors import request_manager"),
        ("actors/llm/rank.py", "from ..ssm import model"),
        ("actors/rpc.py", "from actors.llm import rank"),
        ("cluster/launch.py", "from deploy import app"),
        ("cluster/launch.py", "import loadtest.client"),
        ("loadtest/client.py", "from actors.tree import TokenTree"),
    ],
)
def test_a_planted_import_against_the_direction_is_found(path, source):
    assert len(direction_violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("cluster/launch.py", "from ray import serve"),
        ("actors/llm/actor.py", "import ray"),
        ("actors/ssm/model.py", "import deepspeed.comm as dist"),
        ("cluster/health.py", "import grpc.aio"),
        ("actors/request_manager/engine.py", "import torch.nn"),
        ("actors/request_manager/merge.py", "from transformers import AutoTokenizer"),
        ("actors/llm/actor.py", "from opentelemetry import trace"),
        ("actors/request_manager/drafters/suffix.py", "from protos import speculation_pb2"),
    ],
)
def test_a_planted_library_is_found(path, source):
    assert len(library_violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("deploy/app.py", "from ray import serve\nfrom cluster.launch import launch"),
        ("cluster/launch.py", "from actors.llm.config import LLMConfig"),
        ("actors/request_manager/clients.py", "import grpc\nfrom actors.tree import TokenTree"),
        ("actors/llm/rank.py", "import deepspeed\nimport torch\nfrom .loading import load"),
        ("actors/request_manager/merge.py", "from actors.request_manager.ports import Draft"),
        ("loadtest/report.py", "from loadtest.metrics import summary"),
    ],
)
def test_what_is_allowed_is_not_reported(path, source):
    assert direction_violations(path, source) + library_violations(path, source) == []


def test_planted_words_are_found():
    for text in ("see /" + "work/notes", "as in issue" + " #12", "within this" + " session"):
        assert len(word_violations("README.md", text)) == 1
    assert word_violations("README.md", "a draft session; a workload; agents; /tmp/workdir") == []


def test_a_file_that_the_map_lacks_is_found():
    readme = "`actors/tree.py` trees; actors/llm/: `actor.py`"
    assert unmapped(readme, ["actors/tree.py", "actors/llm/actor.py"]) == []
    assert unmapped(readme, ["actors/tree.py", "actors/llm/actor.py", "actors/ssm/actor.py"]) == [
        "actor.py"
    ]


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
