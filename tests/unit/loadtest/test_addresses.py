"""Addresses of servers as people write them."""

import pytest

from loadtest.errors import UsageError
from loadtest.target import base_url


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("HTTP://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("https://host/prefix/v1/chat/completions", "https://host/prefix"),
    ],
)
def test_an_address_is_brought_to_the_part_before_v1(text, base):
    assert base_url(text) == base


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://host",
        "http://[::1",
        "http://host:99999",
        "http://host:0",
        "http://host:port",
        "http://ho st",
        "http://host\n",
        "http://host/v1?key=1",
        "http://host/#a",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError):
        base_url(text)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as raised:
        base_url("http://me:secret@host")
    assert "secret" not in str(raised.value)
