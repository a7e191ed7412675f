"""The live page as it is served: one document that its own policy allows, and nothing beside."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from deploy.api_keys import ApiKeys
from deploy.doorkeeper import Door
from deploy.page import SCRIPTS
from deploy.settings import ApiSettings


class Reader(HTMLParser):
    """Attributes by tag, ids, and what labels and texts refer to."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        self.attributes.append((tag, dict(attributes)))

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.attributes if tag in tags]

    def values(self, name: str) -> list[str]:
        return [had[name] for _, had in self.attributes if had.get(name)]


def inline(document: str, tag: str) -> str:
    [text] = re.findall(f"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
    return text


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.fixture
async def document(serve) -> str:
    response = await serve().http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return response.text


async def test_its_policy_allows_its_own_script_and_style_alone(serve, document):
    policy = (await serve().http.get("/")).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest(inline(document, 'script'))}'"
    assert rules["style-src"] == f"'sha256-{digest(inline(document, 'style'))}'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in policy
    assert "http" not in policy


async def test_it_needs_nothing_else(document):
    reader = Reader(document)
    assert reader.values("src") == []
    assert all(link.startswith("data:") for link in reader.values("href"))
    assert not re.search(r"@import|url\(", inline(document, "style"))
    script = inline(document, "script")
    addresses = re.findall(r"https?://[^\"'\s]+", script)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}, "a name, never fetched"
    asked = re.findall(r"fetch\((?:isChat \? )?\"([^\"]*)\"", script)
    assert set(asked) == {"v1/models", "v1/chat/completions", "ready", "metrics"}
    assert len(script) > 1000 * len(SCRIPTS)


async def test_no_markup_is_made_from_text(document):
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage|cookie"
    assert not re.search(forbidden, inline(document, "script"))
    assert not any(name.startswith("on") for _, had in Reader(document).attributes for name in had)


async def test_every_control_has_a_name(document):
    reader = Reader(document)
    ids = reader.values("id")
    assert len(ids) == len(set(ids))
    for name in ("for", "aria-labelledby", "aria-describedby"):
        assert set(reader.values(name)) <= set(ids)
    labelled = set(reader.values("for"))
    for control in reader.of("textarea"):
        assert control["id"] in labelled
    for focusable in [had for _, had in reader.attributes if had.get("tabindex")]:
        assert focusable["tabindex"] == "0"
        assert focusable.get("aria-label") or focusable.get("aria-labelledby")
        assert focusable["role"]
    [root] = reader.of("html")
    assert root["lang"] == "en"


async def test_every_element_that_the_script_asks_for_is_there(document):
    asked = set(re.findall(r"byId\(\"([^\"]+)\"\)", inline(document, "script")))
    assert asked <= set(Reader(document).values("id"))
    assert len(asked) > 20


async def test_it_needs_no_key_though_what_it_asks_does(serve):
    served = serve(door=Door(ApiKeys(["secret"])))
    assert (await served.http.get("/")).status_code == 200
    assert (await served.http.get("/v1/models")).status_code == 401


async def test_it_can_be_left_out(serve):
    served = serve(settings=ApiSettings(page=False))
    assert (await served.http.get("/")).status_code == 404
    assert (await served.http.get("/v1/models")).status_code == 200


async def test_it_is_no_part_of_the_described_api(serve):
    document = (await serve().http.get("/openapi.json")).json()
    assert "/" not in document["paths"]


async def test_a_head_is_answered(serve):
    response = await serve().http.head("/")
    assert response.status_code == 200
    assert response.content == b""
