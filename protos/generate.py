"""Generate the Python stubs of `speculation.proto`: `python -m protos.generate [--check]`.

The stubs are committed, so that running TreeServe needs no compiler. `--check` writes nothing and
exits with 1 if they are not what the proto gives.
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = ("speculation_pb2.py", "speculation_pb2.pyi", "speculation_pb2_grpc.py")


def generate(out: Path) -> None:
    """Write the stubs to `out/protos`.

    Raises:
        RuntimeError: if the compiler refuses the proto.
    """
    from grpc_tools import protoc

    include = importlib.resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{include}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        str(ROOT / "protos" / "speculation.proto"),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc refused protos/speculation.proto")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [
            name
            for name in STUBS
            if (Path(folder) / "protos" / name).read_bytes()
            != (ROOT / "protos" / name).read_bytes()
        ]
    if stale:
        print(f"stale: {', '.join(stale)}; run python -m protos.generate", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
