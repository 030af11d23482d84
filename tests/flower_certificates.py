"""Certificates and keys for a federation on this machine, made for one test."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID


def write_certificate(folder):
    """Write ca.crt, and server.pem and server.key of a server on 127.0.0.1."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = _name("test authority")
    root = _certificate(issuer, issuer, authority.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    own = _certificate(_name("localhost"), issuer, server.public_key())
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    own = own.add_extension(x509.SubjectAlternativeName(names), critical=False)
    for file, unsigned in (("ca.crt", root), ("server.pem", own)):
        signed = unsigned.sign(authority, hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(Encoding.PEM))
    _write_private(folder / "server.key", server, PrivateFormat.PKCS8)


def write_node_key(path):
    """Write a private key, and its public one beside it, as ssh-keygen does."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def _write_private(path, key, form):
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(subject, issuer, public_key):
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
    )
