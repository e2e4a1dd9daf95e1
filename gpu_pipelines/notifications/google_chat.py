"""A space of Google Chat, by an incoming webhook.

The body: https://developers.google.com/workspace/chat/api/reference/rest/v1/cards. A card's texts may have HTML tags
(`DecoratedText.text`), so quoted texts are escaped.
"""

from __future__ import annotations

import html
from typing import Any

from gpu_pipelines.notifications.channel import Channel, MailServer
from gpu_pipelines.notifications.message import Message
from gpu_pipelines.notifications.posting import post


class GoogleChat(Channel):
    """Posts the message as a card."""

    title = "Google Chat"

    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        """Posts it."""
        post(address, chat_body(message), seconds)


def chat_body(message: Message) -> dict[str, Any]:
    """A message in the form of Google Chat."""
    widgets: list[dict[str, Any]] = [
        {"decoratedText": {"topLabel": name, "text": html.escape(value, quote=False), "wrapText": True}}
        for name, value in message.facts
        if name != "More" or not message.page
    ]
    if message.page:
        button = {"text": "Open the run", "onClick": {"openLink": {"url": message.page}}}
        widgets.append({"buttonList": {"buttons": [button]}})
    card = {"header": {"title": html.escape(message.title, quote=False)}, "sections": [{"widgets": widgets}]}
    return {"cardsV2": [{"cardId": "run", "card": card}], "fallbackText": message.title}
