"""Who is told of the end of a run, as options and settings of a command say it."""

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
    """Who is told, and how.

    Attributes:
        notify: their addresses; see the parameter of `send_message`.
        about_nothing_new: whether they are told as well that there was nothing new.
        mail: the server for e-mails.
        run_page: page of a run, in which a placeholder of KFP may stand; empty where its name says it.
    """

    notify: tuple[str, ...]
    about_nothing_new: bool = False
    mail: MailServer = MailServer()  # noqa: RUF009 (nothing changes it)
    run_page: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recipients:
        """From what `dataclasses.asdict` has made of it, and JSON of that."""
        return cls(**{**content, "notify": tuple(content["notify"]), "mail": MailServer(**content["mail"])})


def recipients_of(
    notify: Sequence[str] | None,
    about_nothing_new: bool,
    settings: ProjectSettings,
    *,
    variables: Sequence[str] | None = None,
    run_page: str = "",
) -> Recipients | None:
    """Who is told; None for nobody.

    Args:
        notify: their addresses, each text with one or several, separated by commas.
        about_nothing_new: whether they are told as well that there was nothing new.
        settings: the server for e-mails.
        variables: names of the variables of the environment that the sender will have; None for any.
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
    """Checks that the environment of this process has the variables in which the secrets of recipients are.

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
