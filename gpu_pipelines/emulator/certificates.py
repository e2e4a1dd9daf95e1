"""A throwaway certificate authority, a certificate for Google's host names from it, and a service account's key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from gpu_pipelines.emulator.way_out import trusted_here

#: The hosts that the server replaces.
HOSTS = ("*.googleapis.com", "*.pkg.dev")
_DAY = timedelta(days=1)
_VALID = timedelta(days=800)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Certificates:
    """Files in PEM.

    Attributes:
        authority: certificate of the authority, which clients have to trust.
        trusted: the same, with those that programs of this machine trust.
        chain: certificate of the server.
        key: its private key.
        service_account: key file of a service account that does not exist.
    """

    authority: Path
    trusted: Path
    chain: Path
    key: Path
    service_account: Path

    def environment(self, proxy: str) -> dict[str, str]:
        """Variables with which Google's libraries reach a proxy, and trust the certificates behind it."""
        # gRPC is only used for Google's hosts; with HTTPS a step reaches others as well.
        trusted = str(self.trusted)
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.service_account),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.authority),
            "REQUESTS_CA_BUNDLE": trusted,
            "SSL_CERT_FILE": trusted,
            "https_proxy": proxy,
            "no_proxy": "127.0.0.1,localhost",
            # There is no metadata server to ask for credentials.
            "NO_GCE_CHECK": "true",
        }


def certificates_in(folder: Path, project: str) -> Certificates:
    """The certificates of a folder; created if they do not exist, so that clients can keep using them.

    Those of an older version that clients on Python 3.13 do not trust are created anew.
    """
    held = _in_folder(folder)
    if all(path.exists() for path in (held.authority, held.chain, held.key, held.service_account)):
        chain = x509.load_pem_x509_certificate(held.chain.read_bytes())
        names_authority = any(each.oid == ExtensionOID.AUTHORITY_KEY_IDENTIFIER for each in chain.extensions)
        if names_authority and chain.not_valid_after_utc > datetime.now(timezone.utc) + _DAY:
            _write_trusted(held)
            return held
    folder.mkdir(parents=True, exist_ok=True)
    return make_certificates(folder, project)


def _in_folder(folder: Path) -> Certificates:
    names = ("authority.pem", "trusted.pem", "server.pem", "server.key", "service-account.json")
    return Certificates(*(folder / name for name in names))


def make_certificates(folder: Path, project: str) -> Certificates:
    """Creates an authority, whose key is discarded, a certificate for `HOSTS`, and the key of a service account."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Throwaway authority of an emulator")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    # Since Python 3.13 clients refuse an authority that does not say what its key is for, and a certificate that does
    # not name that key (VERIFY_X509_STRICT).
    authority = (
        _certificate(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOSTS[0])])
    certificate = (
        _certificate(subject, name, key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = _in_folder(folder)
    _write_service_account_key(made.service_account, project)
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    _write_trusted(made)
    made.chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.write_text(_pem(key))
    return made


def _write_trusted(made: Certificates) -> None:
    made.trusted.write_bytes(made.authority.read_bytes() + trusted_here())


def _write_service_account_key(path: Path, project: str) -> None:
    """Writes the key file in the form of `gcloud iam service-accounts keys create`."""
    address = f"tester@{project}.iam.gserviceaccount.com"
    # Nobody checks its signatures; each new client takes 40 ms to check a key of 2,048 bits, and 6 ms for this one.
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
    content = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "0",
        "private_key": _pem(key),
        "client_email": address,
        "client_id": "0",
        "token_uri": "https://oauth2.googleapis.com/token",
        "universe_domain": "googleapis.com",
    }
    path.write_text(json.dumps(content))


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _DAY,
        not_valid_after=now + _VALID,
    )


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
