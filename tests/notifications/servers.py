"""Servers of this machine that take messages as the real ones do."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of


@dataclass
class Posts:
    """What a server was sent.

    Attributes:
        address: the webhook, with a token in its path.
        bodies: what was posted to it.
        answers: status and headers of the next answers; then 200.
    """

    address: str
    bodies: list[Any] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)


TOKEN = "/services/T0000/B0000/very-secret-token"


@contextmanager
def webhook() -> Iterator[Posts]:
    """A server that takes posts to one path."""
    posts = Posts("")

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = self.body()
            if self.path != TOKEN:
                self.send(404, {"error": "no_team"})
                return
            status, headers = posts.answers.pop(0) if posts.answers else (200, {})
            if status == 200:
                posts.bodies.append(json.loads(body))
            # Some services repeat the path that they were asked for.
            self.send(status, {"path": self.path} if status != 200 else {}, **headers)

    with answering(server_of(Handler)) as address:
        posts.address = f"{address}{TOKEN}"
        yield posts


@dataclass
class Mails:
    """What a server for e-mails has taken.

    Attributes:
        port: where it listens.
        taken: the e-mails, each with sender and recipients of its envelope.
        logins: users that have logged in.
        refusals: its next answers to a recipient.
    """

    port: int = 0
    taken: list[tuple[str, list[str], EmailMessage]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if self.refusals:
            return self.refusals.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        mail = message_from_bytes(envelope.content, policy=policy.default)
        self.taken.append((envelope.mail_from, envelope.rcpt_tos, cast(EmailMessage, mail)))
        return "250 OK"


@contextmanager
def mail_server(certificate: Path | None = None, password: str = "", at_once: bool = False) -> Iterator[Mails]:
    """A server for e-mails.

    Args:
        certificate: file with certificate and key, for TLS; None for a server without.
        password: what users have to log in with; empty if nobody has to.
        at_once: whether TLS is there from the beginning, in place of STARTTLS.
    """
    mails = Mails()

    def login(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        good = data.password.decode() == password
        if good:
            mails.logins.append(data.login.decode())
        return AuthResult(success=good, handled=good)

    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    wanted: dict[str, Any] = {"ssl_context": context} if at_once else {"tls_context": context}
    if password:
        wanted |= {"authenticator": login, "auth_required": True, "auth_require_tls": not at_once}
    with socket.create_server(("127.0.0.1", 0)) as free:
        mails.port = free.getsockname()[1]
    controller = Controller(mails, hostname="127.0.0.1", port=mails.port, **wanted)
    controller.start()
    try:
        yield mails
    finally:
        controller.stop()


def certificate_for_here(folder: Path) -> Path:
    """A certificate for localhost that signs itself, with its key; whoever trusts the file trusts the server."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "localhost.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path
