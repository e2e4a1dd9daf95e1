"""The parameters of `send_message`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.component_interface.parameter import parameter
from gpu_pipelines.notifications.channel import MailServer
from gpu_pipelines.notifications.channels import problems_of_addresses


@dataclass(frozen=True)
class MessageSettings:
    """The parameters of `send_message`."""

    notify: list[str] = parameter(
        [],
        "Who gets the message: e-mail addresses, and slack:, google-chat: or webhook: with the place of the webhook's "
        "address, projects/PROJECT/secrets/SECRET/versions/VERSION or the name of an environment variable; at most "
        "ten.",
    )
    notify_nothing_new: bool = parameter(
        False, "Whether to send a message also after a run that had nothing new to train on."
    )
    mail_server: str = parameter(
        "", "Server for e-mails, smtp://USER@HOST:587 (STARTTLS) or smtps://USER@HOST:465; needed only for e-mails."
    )
    mail_sender: str = parameter("", "E-mail address that messages come from.")
    mail_password: str = parameter(
        "", "Place of USER's password: projects/PROJECT/secrets/SECRET/versions/VERSION, or a variable's name."
    )
    run_name: str = parameter("", "Name of the run.", filled_in=True)
    run_page: str = parameter("", "Page of the run; empty on Vertex AI, where the run's name gives it.", filled_in=True)
    began: str = parameter("", "When the run began, in ISO 8601; empty if that is not known.", filled_in=True)
    dollars_per_hour: float = parameter(
        0.0, "What the machines of the training cost, US dollars an hour; 0 if that is not known."
    )
    outcome_uri: str = parameter(
        "", "Directory, local or gs://, in which the steps have left the outcome of the run; empty for none."
    )

    @property
    def mail(self) -> MailServer:
        """The server for e-mails."""
        return MailServer(self.mail_server, self.mail_sender, self.mail_password)

    def problems(self) -> list[str]:
        """All problems with the values, each with what to do."""
        return problems_of_addresses(self.notify, self.mail)
