"""Certificates of the emulator, as clients check them."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_pipelines.emulator.certificates import Certificates, certificates_in


def version_of_tls(certificates: Certificates) -> str | None:
    """What a client and a server agree on, if the client checks as Python 3.13 does."""
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(certificates.chain, certificates.key)
    asks = ssl.create_default_context(cafile=str(certificates.authority))
    asks.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asks.wrap_bio(to_client, to_server, server_hostname="us-central1-kfp.pkg.dev")
    server = serves.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server) * 3:
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.version()


def test_clients_that_check_strictly_trust_the_emulator(tmp_path: Path) -> None:
    assert version_of_tls(certificates_in(tmp_path, "p")) == "TLSv1.3"


def test_certificates_of_an_older_version_are_made_anew_and_those_of_this_one_stay(tmp_path: Path) -> None:
    held = certificates_in(tmp_path, "p")
    chain = held.chain.read_bytes()
    assert certificates_in(tmp_path, "p").chain.read_bytes() == chain
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    of_old = x509.CertificateBuilder(x509.Name([]), x509.Name([]), key.public_key(), 1, now, now + timedelta(days=9))
    held.chain.write_bytes(of_old.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    assert version_of_tls(certificates_in(tmp_path, "p")) == "TLSv1.3"
