"""The process in which grammars are checked: a line of JSON for each, in and out.

What a grammar takes cannot be told from its text, so each may use a few seconds of the processor
and some memory, and no more: the kernel ends the process that does. `deploy.grammar_checks` starts
it, and it ends when its input does.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from actors.errors import InputError
from deploy.structured_output import source_of

MAX_CPU_S = 1
"""Of the processor's time for one grammar, up to a second more; usual ones take milliseconds."""
MAX_MEMORY_BYTES = 1 << 30
"""On top of what the process has when it starts."""


def main() -> int:
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MAX_MEMORY_BYTES, unlimited))
    for line in sys.stdin:
        end_s = math.ceil(time.process_time()) + MAX_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (end_s, unlimited))
        print(json.dumps(answer(json.loads(line))), flush=True)
    return 0


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The grammar's source, or what is wrong with it."""
    try:
        return {"source": source_of(asked["param"], asked["wanted"])}
    except InputError as error:
        return {"message": error.message, "param": error.param, "code": error.code}
    except MemoryError:
        os.abort()  # as the library does, which is not Python


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
