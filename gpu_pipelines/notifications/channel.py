"""The port of channels: what one has to do so that messages about runs go there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gpu_pipelines.notifications.message import Message


class TryAgainError(Exception):
    """A message did not get through, and the same may later.

    Args:
        reason: why, without anything secret.
        seconds: how long to wait at least, if the service has said so.
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
        address: smtp://USER@HOST:PORT, where TLS begins with STARTTLS, or smtps://USER@HOST:PORT, where it is there at
            once; without USER nobody logs in. Empty for no server.
        sender: who the e-mails are from.
        password: where the password of USER is, as `google_cloud.secret_reference` has it; empty for none.
    """

    address: str = ""
    sender: str = ""
    password: str = ""


class Channel(ABC):
    """One kind of place that messages go to.

    Attributes:
        title: what it is called in sentences.
        takes_secret: whether the address behind the channel's name is where a secret is, which `send` gets in its
            place. An address by which anybody can post is a secret.
    """

    title: str = ""
    takes_secret: bool = True

    def problems(self, address: str, mail: MailServer | None) -> list[str]:
        """What is wrong with an address, each with what to do; reads nothing.

        Args:
            address: what stands behind the channel's name and a colon.
            mail: the server for e-mails; None where it is not known.
        """
        return []

    @abstractmethod
    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        """Sends a message.

        Args:
            message: it.
            address: where to; the secret itself, if that is what the channel takes.
            mail: the server for e-mails.
            seconds: how long it may take.

        Raises:
            TryAgainError: it did not get through this time.
            NotSentError: it never will.
        """
