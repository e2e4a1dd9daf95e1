"""The recipients of messages, from the options and settings of a command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.secret_reference import is_variable
from gpu_pipelines.notifications.channel import MailServer
from gpu_pipelines.notifications.channels import channel_named, is_email, problems_of_addresses, split
from gpu_pipelines.project_settings import ProjectSettings


@dataclass(frozen=True)
class Recipients:
    """The recipients of messages, and how to reach them.

    Attributes:
        notify: their addresses; see the parameter of `send_message`.
        about_nothing_new: whether to tell them also if there was nothing new.
        mail: the server for e-mails.
        run_page: page of a run, which may hold a placeholder of KFP; empty if the run's name gives it.
    """

    notify: tuple[str, ...]
    about_nothing_new: bool = False
    mail: MailServer = MailServer()  # noqa: RUF009 (it is immutable)
    run_page: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recipients:
        """Reads JSON of `dataclasses.asdict`."""
        return cls(**{**content, "notify": tuple(content["notify"]), "mail": MailServer(**content["mail"])})


def recipients_of(
    notify: Sequence[str] | None,
    about_nothing_new: bool,
    settings: ProjectSettings,
    *,
    variables: Sequence[str] | None = None,
    run_page: str = "",
) -> Recipients | None:
    """The recipients; None for none.

    Args:
        notify: their addresses, each text with one or more, separated by commas.
        about_nothing_new: whether to tell them also if there was nothing new.
        settings: the server for e-mails.
        variables: names of the environment variables that the sender will have; None for any.
        run_page: page of a run.

    Raises:
        UserError: lists everything that is wrong.
    """
    every = tuple(part.strip() for text in notify or () for part in text.split(",") if part.strip())
    if not every:
        return None
    mail = MailServer(settings.mail_server or "", settings.mail_sender or "", settings.mail_password or "")
    if problems := problems_of_addresses(every, mail, variables):
        raise UserError.of_all([problem.replace("notify has", "--notify has", 1) for problem in problems])
    return Recipients(every, about_nothing_new, mail, run_page)


def require_variables(told: Recipients) -> None:
    """Checks that the environment of this process has the variables with the recipients' secrets.

    Raises:
        UserError: lists those that are not set.
    """
    references = [address for name, address in map(split, told.notify) if channel_named(name).takes_secret]
    if any(is_email(given) for given in told.notify):
        references.append(told.mail.password)
    problems = [
        f"--notify needs the variable {each} of the environment, which is not set. Set it to the secret."
        for each in dict.fromkeys(references)
        if is_variable(each) and not os.environ.get(each, "").strip()
    ]
    if problems:
        raise UserError.of_all(problems)
