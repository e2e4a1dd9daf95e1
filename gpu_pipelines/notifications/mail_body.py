"""The HTML of an e-mail: one table with inline styles, which e-mail programs show alike."""

from __future__ import annotations

import html

from gpu_pipelines.notifications.message import Message

_NAME = "padding:6px 16px 6px 0;color:#5f6368;vertical-align:top;white-space:nowrap"
_VALUE = "padding:6px 0;color:#202124;vertical-align:top"


def html_of(message: Message) -> str:
    """A message as a page; quoted texts are escaped."""
    color = "#b3261e" if message.is_bad else "#146c2e" if message.outcome in ("promoted", "finished") else "#5f6368"
    rows = "".join(
        f'<tr><td style="{_NAME}">{html.escape(name)}</td><td style="{_VALUE}">{_value(name, value, message)}</td></tr>'
        for name, value in message.facts
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"></head>'
        '<body style="margin:0;padding:24px;font:14px/1.5 Arial,Helvetica,sans-serif;color:#202124">'
        f'<h1 style="margin:0 0 16px;padding-left:12px;border-left:4px solid {color};font-size:20px;font-weight:600">'
        f'{html.escape(message.title)}</h1><table style="border-collapse:collapse;max-width:720px">{rows}</table>'
        "</body></html>\n"
    )


def _value(name: str, value: str, message: Message) -> str:
    if name == "More" and message.page:
        return f'<a href="{html.escape(message.page)}" style="color:#1a56db">Open the run</a>'
    return html.escape(value)
