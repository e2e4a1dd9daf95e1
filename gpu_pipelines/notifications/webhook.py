"""A webhook: a server of the user that takes JSON."""

from __future__ import annotations

from gpu_pipelines.notifications.channel import Channel, MailServer
from gpu_pipelines.notifications.message import Message
from gpu_pipelines.notifications.posting import post


class Webhook(Channel):
    """Posts the message as a JSON object."""

    title = "the webhook"

    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        """Posts it."""
        post(address, message.to_json(), seconds)
