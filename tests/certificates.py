"""Certificates for tests, signed by an authority made on the spot."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actors.tls import PEER_NAME, TlsFiles

NOW = datetime.datetime.now(datetime.UTC)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Authority:
    """Signs certificates; its own lasts ten days."""

    name: str = "authority"
    key: ec.EllipticCurvePrivateKey = field(default_factory=_new_key)

    def certificate(self) -> x509.Certificate:
        return self._signed(self.name, self.key, days=10, is_authority=True)

    def files(self, folder: Path, days: float = 5, dns_name: str = PEER_NAME) -> TlsFiles:
        """A new certificate in `folder`, over the one that is there."""
        folder.mkdir(parents=True, exist_ok=True)
        key = _new_key()
        files = TlsFiles(
            ca=str(folder / "ca.crt"), cert=str(folder / "tls.crt"), key=str(folder / "tls.key")
        )
        Path(files.ca).write_bytes(_pem(self.certificate()))
        Path(files.cert).write_bytes(_pem(self._signed(dns_name, key, days, is_authority=False)))
        Path(files.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, days: float, is_authority: bool
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - datetime.timedelta(days=1))
            .not_valid_after(NOW + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if not is_authority:
            names = x509.SubjectAlternativeName([x509.DNSName(name)])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self.key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
