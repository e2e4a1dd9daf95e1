"""The port of channels: what a channel has to do to deliver messages about runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gpu_pipelines.notifications.message import Message


class TryAgainError(Exception):
    """A message did not get through, but may later.

    Args:
        reason: why, without anything secret.
        seconds: shortest time to wait, if the service gave one.
    """

    def __init__(self, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds


class NotSentError(Exception):
    """A message did not get through and never will; the text says why, without anything secret."""


@dataclass(frozen=True)
class MailServer:
    """The server that takes e-mails.

    Attributes:
        address: smtp://USER@HOST:PORT for STARTTLS, or smtps://USER@HOST:PORT for TLS from the start; without USER
            there is no login. Empty for no server.
        sender: the sender of the e-mails.
        password: where the password of USER is, as in `google_cloud.secret_reference`; empty for none.
    """

    address: str = ""
    sender: str = ""
    password: str = ""


class Channel(ABC):
    """One kind of destination of messages.

    Attributes:
        title: its name in sentences.
        takes_secret: whether the address after the channel's name is the place of a secret, whose value `send` gets
            instead. An address with which anybody can post is a secret.
    """

    title: str = ""
    takes_secret: bool = True

    def problems(self, address: str, mail: MailServer | None) -> list[str]:
        """Problems with an address, each with what to do; reads nothing.

        Args:
            address: what follows the channel's name and a colon.
            mail: the server for e-mails; None if it is not known.
        """
        return []

    @abstractmethod
    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        """Sends a message.

        Args:
            message: the message.
            address: its destination; the value of the secret if the channel takes one.
            mail: the server for e-mails.
            seconds: how long it may take.

        Raises:
            TryAgainError: it did not get through this time.
            NotSentError: it never will.
        """
