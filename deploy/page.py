"""The live page at `/`: ask something, and watch the token tree of each step.

One HTML document that needs nothing else, put together at the start from the files in `live_page/`.
Its Content-Security-Policy allows its own script and style, by their hashes, and requests to this
server, nothing more. Everybody may load it; what it asks of `/v1` carries the reader's API key.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from fastapi import FastAPI
from starlette.responses import Response

SCRIPTS = (
    *("common.js", "request.js", "tree.js", "bars.js", "steps.js", "answer.js", "figures.js"),
    "page.js",
)
"""In the order in which they stand in the page."""


def add_page(app: FastAPI) -> None:
    """Serve the page at `/`; it is not part of the API that `/openapi.json` describes."""
    document, policy = build_page()
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(document, headers=headers, media_type="text/html")


def build_page() -> tuple[str, str]:
    """The document, and its Content-Security-Policy."""
    style = _text("page.css")
    script = "\n".join(_text(name) for name in SCRIPTS)
    document = (
        _text("page.html")
        .replace("<style></style>", f"<style>{style}</style>")
        .replace("<script></script>", f"<script>{script}</script>")
    )
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return document, policy


def _text(name: str) -> str:
    return (resources.files("deploy") / "live_page" / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What stands for an inline script or style in a policy (W3C CSP Level 3, 2.3.1)."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
