"""E-mails, sent through a server with TLS."""

from __future__ import annotations

import re
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from urllib.parse import unquote, urlsplit

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.secret_reference import FORM, is_secret, is_variable, value_of
from gpu_pipelines.notifications.channel import Channel, MailServer, NotSentError, TryAgainError
from gpu_pipelines.notifications.mail_body import html_of
from gpu_pipelines.notifications.message import Message
from gpu_pipelines.notifications.posting import LOOPBACK, no_tls

_ADDRESS = re.compile(r"[^@\s,<>\"]+@[^@\s,<>\"]+\.[^@\s,<>\"]+")
_SERVER = re.compile(r"smtps?://([^@\s/:]+@)?[a-zA-Z0-9.-]+(:[0-9]{1,5})?")
#: Default ports of servers: RFC 6409, RFC 8314.
_PORTS = {"smtp": 587, "smtps": 465}


def is_mail_address(text: str) -> bool:
    """Whether a text looks like an e-mail address."""
    return _ADDRESS.fullmatch(text) is not None


class Email(Channel):
    """Sends the message in plain text and as HTML."""

    title = "e-mail"
    takes_secret = False

    def problems(self, address: str, mail: MailServer | None) -> list[str]:
        """Problems: it is not an address, or no server is known."""
        found = [] if is_mail_address(address) else [f"notify has {address[:80]!r}, which is not an e-mail address."]
        return [*found, *(problems_of_server(mail) if mail else [])]

    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        """Sends it."""
        try:
            password = value_of(mail.password) if mail.password else ""
        except UserError as error:
            raise NotSentError(error.in_one_line) from None
        where = urlsplit(mail.address)
        host = str(where.hostname)
        try:
            with _connected(where.scheme, host, where.port or _PORTS[where.scheme], seconds) as server:
                if where.username:
                    server.login(unquote(where.username), password)
                server.send_message(mail_of(message, mail.sender, address))
        except ssl.SSLError as error:
            raise no_tls(host, error) from None
        except smtplib.SMTPException as error:
            raise _meant(error, host) from None
        except OSError as error:
            raise TryAgainError(f"{host} cannot be reached ({type(error).__name__})") from None


def problems_of_server(mail: MailServer) -> list[str]:
    """Problems with the server for e-mails."""
    if not mail.address:
        return [
            "An e-mail needs a server: write mail_server: smtp://USER@HOST:587, mail_sender and mail_password into "
            "gpu-pipelines.yaml."
        ]
    found = []
    if not _is_server(mail.address):
        # The value is not repeated: it may hold a password.
        found.append("mail_server is not an address of the form smtp://USER@HOST:587 or smtps://USER@HOST:465.")
    elif urlsplit(mail.address).username and not mail.password:
        found.append(f"mail_server names a user, but there is no mail_password. Give {FORM}.")
    if not is_mail_address(mail.sender):
        found.append(f"mail_sender is {mail.sender[:80]!r}; give the e-mail address that messages come from.")
    if mail.password and not (is_secret(mail.password) or is_variable(mail.password)):
        found.append(f"mail_password does not refer to a password. Give {FORM}; the password itself would be shown.")
    return found


def _is_server(address: str) -> bool:
    try:
        return bool(_SERVER.fullmatch(address)) and urlsplit(address).port != 0
    except ValueError:  # a port above 65535
        return False


def mail_of(message: Message, sender: str, address: str) -> EmailMessage:
    """A message as an e-mail."""
    made = EmailMessage()
    made["Subject"] = message.title
    made["From"], made["To"] = sender, address
    made["Date"], made["Message-ID"] = formatdate(), make_msgid(domain=sender.rpartition("@")[2])
    # So that automatic replies are not sent.
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(f"{message.text}\n")
    made.add_alternative(html_of(message), subtype="html")
    return made


def _connected(scheme: str, host: str, port: int, seconds: float) -> smtplib.SMTP:
    """A connection with TLS; without it only to this machine, for tests."""
    trusted = ssl.create_default_context()
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port, timeout=seconds, context=trusted)
    server = smtplib.SMTP(host, port, timeout=seconds)
    try:
        server.ehlo()
        if server.has_extn("starttls"):
            server.starttls(context=trusted)
            server.ehlo()
        elif host not in LOOPBACK:
            raise NotSentError(f"{host} offers no TLS (STARTTLS), but a message has to be encrypted")
    except BaseException:
        server.close()
        raise
    return server


def _meant(error: smtplib.SMTPException, host: str) -> Exception:
    """The error for an answer of the server; its text about a login may name the user, and is not repeated."""
    code = getattr(error, "smtp_code", 0)
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code = max((code for code, _ in error.recipients.values()), default=0)
    told = f"{host} refused the e-mail ({type(error).__name__}{f', {code}' if code else ''})"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return NotSentError(told)
    return NotSentError(told) if 500 <= code < 600 else TryAgainError(told)
