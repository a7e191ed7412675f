"""Certificates are looked at before they are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.errors import UnavailableError
from actors.tls import TlsFiles
from tests.certificates import Authority


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return Authority().files(tmp_path)


def test_good_ones_pass_and_the_first_to_end_counts(tmp_path: Path) -> None:
    authority = Authority()
    short, long = authority.files(tmp_path / "a", days=3), authority.files(tmp_path / "b", days=99)
    short.check()
    long.check()
    (lasts,) = {(long.expires_at() - short.expires_at()).days}
    assert lasts == 7, "the authority's own ends after ten"


def test_what_would_fail_later_is_told(files: TlsFiles, tmp_path: Path) -> None:
    stranger = Authority("stranger").files(tmp_path / "stranger")
    (tmp_path / "empty").touch()
    for change, reason in (
        ({"ca": stranger.ca}, "issuer certificate"),
        ({"key": stranger.key}, "mismatch"),
        ({"cert": str(tmp_path / "none")}, "cannot be read"),
        ({"ca": str(tmp_path / "empty")}, "no certificate"),
        ({"key": str(tmp_path / "empty")}, "of no use"),
    ):
        with pytest.raises(UnavailableError, match=reason):
            files.model_copy(update=change).check()


@pytest.mark.parametrize(
    ("how", "reason"), [({"days": -0.5}, "expired"), ({"dns_name": "other"}, "not valid for")]
)
def test_a_certificate_that_has_ended_or_has_another_name(
    tmp_path: Path, how: dict, reason: str
) -> None:
    with pytest.raises(UnavailableError, match=reason):
        Authority().files(tmp_path, **how).check()
