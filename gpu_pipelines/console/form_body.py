"""The form in the body of a request: its fields, and the files dropped on the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from urllib.parse import parse_qsl

_MOST_FIELDS = 2000
_URLENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


@dataclass(frozen=True)
class DroppedFile:
    """A file of a form.

    Attributes:
        name: its name at its origin; not to be used as a path.
        content: the bytes.
    """

    name: str
    content: bytes


@dataclass(frozen=True)
class FormBody:
    """A submitted form.

    Attributes:
        fields: values by name; for a repeated field the last one.
        files: the files by the names of their fields.
    """

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, DroppedFile] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, body: bytes) -> FormBody:
        """Reads a body; one that is not a form has no fields.

        Args:
            kind: its content type.
            body: the bytes.
        """
        if kind.startswith(_MULTIPART):
            return cls._of_parts(kind, body)
        if not kind.startswith(_URLENCODED):
            return cls()
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return cls()
        return cls(dict(pairs))

    @classmethod
    def _of_parts(cls, kind: str, body: bytes) -> FormBody:
        message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {kind}\r\n\r\n".encode("utf-8", "replace") + body)
        found = cls()
        for part in message.iter_parts() if message.is_multipart() else ():
            name = str(part.get_param("name", header="content-disposition"))
            content = part.get_payload(decode=True)
            content = content if isinstance(content, bytes) else b""
            if file := part.get_filename():
                found.files[name] = DroppedFile(file, content)
            else:
                found.fields[name] = content.decode("utf-8", "replace")
        return found

    def text(self, name: str) -> str:
        """The value of a field; empty if it was not sent."""
        return self.fields.get(name, "")
