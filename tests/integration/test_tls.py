"""TLS between manager and ranks over real sockets: who is let in, and what a renewal changes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from echo_rank import EchoRank, connected, serving, step

from actors.errors import PeerError
from actors.tls import PEER_NAME, TlsFiles
from tests.certificates import Authority

pytestmark = pytest.mark.integration

SOON_S = 2.0


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def own(authority: Authority, tmp_path: Path) -> TlsFiles:
    return authority.files(tmp_path / "server")


@pytest.fixture
def address(own: TlsFiles) -> Iterator[str]:
    with serving(EchoRank(), own) as address:
        yield address


async def test_both_sides_show_certificates(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    async with connected(address, tls=authority.files(tmp_path / "client")) as client:
        assert (await client.describe()).model_id == "echo"
        assert (await client.step(step(0))).step_id == 0
        await client.restore()
        assert (await client.step(step(0, epoch=2))).step_id == 0


async def is_refused(address: str, tls: TlsFiles | None) -> bool:
    async with connected(address, connect_timeout_s=SOON_S, tls=tls) as client:
        try:
            await client.describe()
        except PeerError:
            return True
        return False


async def test_who_is_not_let_in(address: str, own: TlsFiles, tmp_path: Path) -> None:
    stranger = Authority("stranger").files(tmp_path / "stranger")
    assert await is_refused(address, None)
    assert await is_refused(address, stranger)
    assert await is_refused(address, stranger.model_copy(update={"ca": own.ca}))


async def test_a_server_under_another_name_is_not_trusted(
    authority: Authority, tmp_path: Path
) -> None:
    with serving(EchoRank(), authority.files(tmp_path / "a", dns_name="other")) as address:
        assert await is_refused(address, authority.files(tmp_path / "b"))


def shown(address: str) -> x509.Certificate:
    """The certificate of whoever listens."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return x509.load_pem_x509_certificate(pem.encode())


def test_a_renewed_certificate_is_shown_to_the_next_client(
    authority: Authority, own: TlsFiles, address: str
) -> None:
    before = shown(address)
    authority.files(Path(own.cert).parent, days=7)
    after = shown(address)
    assert after.not_valid_after_utc > before.not_valid_after_utc
    Path(own.key).unlink()
    assert shown(address) == after


async def test_a_client_reads_its_certificate_anew_when_it_comes_back(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    stranger = Authority("stranger").files(tmp_path / "client")
    async with connected(address, connect_timeout_s=SOON_S, tls=stranger) as client:
        with pytest.raises(PeerError):
            await client.describe()
        authority.files(tmp_path / "client")
        await client.restore()
        assert (await client.describe()).model_id == "echo"


def test_names(own: TlsFiles) -> None:
    (certificate,) = x509.load_pem_x509_certificates(Path(own.cert).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [PEER_NAME]
