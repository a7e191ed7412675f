"""The process in which grammars are checked: a line of JSON for each, in and out.

What a grammar takes cannot be told from its text, so each may use a second or two of the processor
and some memory, and no more: the kernel ends the process that does. `deploy.grammar_checks` starts
it, and it ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from actors.errors import InputError
from deploy.structured_output import source_of

logger = logging.getLogger(__name__)

MAX_CPU_S = 1
"""Of the processor's time for one grammar, and up to a second more, as the kernel counts whole
seconds; usual grammars take milliseconds."""
NICE = 5
MAX_MEMORY_BYTES = 1 << 30
"""On top of what the process has when it starts."""


def main() -> int:
    _yield_to_others()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + MAX_MEMORY_BYTES)
    for line in sys.stdin:
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + MAX_CPU_S)
        found = answer(json.loads(line))
        _limit(resource.RLIMIT_CPU, None)  # what comes next is not at fault for this one
        print(json.dumps(found), flush=True)
    return 0


def _limit(what: int, most: int | None) -> None:
    """As far as the limits that this process was given allow; None for no more than these."""
    _, hard = resource.getrlimit(what)
    if most is None or hard != resource.RLIM_INFINITY:
        most = hard if most is None else min(most, hard)
    resource.setrlimit(what, (most, hard))


def _yield_to_others() -> None:
    """The LLM's threads come first, and this process is the first to go where memory is short."""
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The grammar's source, or what is wrong with it."""
    try:
        return {"source": source_of(asked["param"], asked["wanted"])}
    except InputError as error:
        return {"message": error.message, "param": error.param, "code": error.code}
    except MemoryError:
        os.abort()  # as the library does, which is not Python
    except Exception as error:  # whatever the library fell over, it would again
        logger.exception("a grammar could not be checked")
        message = f"{asked['param']} cannot be checked: {type(error).__name__}"
        return {"message": message, "param": asked["param"], "code": "invalid_grammar"}


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
