"""A channel of Slack, by an incoming webhook.

The body: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks. Quoted texts are in blocks of plain
text, in which Slack looks for no mentions and no formatting; `&`, `<` and `>` are escaped as required by
https://docs.slack.dev/messaging/formatting-message-text.
"""

from __future__ import annotations

import re
from typing import Any

from gpu_pipelines.notifications.channel import Channel, MailServer
from gpu_pipelines.notifications.message import Message
from gpu_pipelines.notifications.posting import post

#: Most characters of a header, of a field, and most fields of a section (Block Kit reference).
_HEADER, _FIELD, _FIELDS = 150, 2000, 10


class Slack(Channel):
    """Posts the message in blocks."""

    title = "Slack"

    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        """Posts it."""
        post(address, slack_body(message), seconds)


def slack_body(message: Message) -> dict[str, Any]:
    """A message in the form of Slack."""
    facts = [(name, value) for name, value in message.facts if name != "More" or not message.page]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(message.title, _HEADER)},
        {"type": "section", "fields": [_plain(f"{name}: {value}", _FIELD) for name, value in facts[:_FIELDS]]},
    ]
    if message.page:
        # In an address, characters that would end Slack's link are percent-encoded.
        page = _escaped(message.page.replace("|", "%7C").replace(">", "%3E").replace("<", "%3C"))
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{page}|Open the run>"}})
    # The text of notifications.
    return {"text": _escaped(message.title), "blocks": blocks}


def _plain(text: str, most: int) -> dict[str, Any]:
    shown = _escaped(text)
    if len(shown) > most:
        # Half of an escape would be shown as it is.
        shown = re.sub(r"&[a-z]*$", "", shown[: most - 1]) + "…"
    return {"type": "plain_text", "text": shown, "emoji": False}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
