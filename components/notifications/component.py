"""The KFP interface of `send_message`."""

from kfp import dsl

from gpu_pipelines.component_interface.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def send_message(
    status: dsl.PipelineTaskFinalStatus,
    notify: list = [],  # noqa: B006 (KFP takes the default from here)
    notify_nothing_new: bool = False,
    mail_server: str = "",
    mail_sender: str = "",
    mail_password: str = "",
    run_name: str = "",
    run_page: str = "",
    began: str = "",
    dollars_per_hour: float = 0.0,
    outcome_uri: str = "",
    pipeline: str = "",
) -> None:
    """Tells people how a run has ended: by webhook, Slack, Google Chat or e-mail. For a dsl.ExitHandler.

    Args:
        status: How the tasks in the exit handler ended; KFP fills it in.
        notify: Who gets the message: e-mail addresses, and slack:, google-chat: or webhook: with the place of the
            webhook's address, projects/PROJECT/secrets/SECRET/versions/VERSION or the name of an environment variable;
            at most ten.
        notify_nothing_new: Whether to send a message also after a run that had nothing new to train on.
        mail_server: Server for e-mails, smtp://USER@HOST:587 (STARTTLS) or smtps://USER@HOST:465; needed only for
            e-mails.
        mail_sender: E-mail address that messages come from.
        mail_password: Place of USER's password: projects/PROJECT/secrets/SECRET/versions/VERSION, or a variable's name.
        run_name: Name of the run.
        run_page: Page of the run; empty on Vertex AI, where the run's name gives it.
        began: When the run began, in ISO 8601; empty if that is not known.
        dollars_per_hour: What the machines of the training cost, US dollars an hour; 0 if that is not known.
        outcome_uri: Directory, local or gs://, in which the steps have left the outcome of the run; empty for none.
        pipeline: Name of the pipeline in the message.
    """
    from gpu_pipelines.notifications.step import MessageSettings, run

    run(
        MessageSettings(
            notify=notify,
            notify_nothing_new=notify_nothing_new,
            mail_server=mail_server,
            mail_sender=mail_sender,
            mail_password=mail_password,
            run_name=run_name,
            run_page=run_page,
            began=began,
            dollars_per_hour=dollars_per_hour,
            outcome_uri=outcome_uri,
        ),
        status=status,
        pipeline=pipeline,
    )
