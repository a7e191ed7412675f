"""`python -m loadtest`."""

import sys


def _run() -> int:
    try:
        from loadtest.cli import main  # takes long enough to be interrupted in

        return main()
    except KeyboardInterrupt:
        print("loadtest: interrupted before the first request", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(_run())
