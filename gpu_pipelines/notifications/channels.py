"""All channels by name, and checks of the parameter `notify`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.google_cloud.secret_reference import FORM, is_secret, is_variable
from gpu_pipelines.notifications.channel import Channel, MailServer
from gpu_pipelines.notifications.email_channel import is_mail_address
from gpu_pipelines.own_class import own_class, places_of, said_by_own

#: The address of this channel is an e-mail address alone, without the channel's name before it.
EMAIL = "email"
#: A channel of this program is one file and one line here.
_BUILT_IN = {
    EMAIL: "gpu_pipelines.notifications.email_channel:Email",
    "google-chat": "gpu_pipelines.notifications.google_chat:GoogleChat",
    "slack": "gpu_pipelines.notifications.slack:Slack",
    "webhook": "gpu_pipelines.notifications.webhook:Webhook",
}
#: A channel of an installed package is one line in its metadata: `name = package.module:Class`.
ENTRY_POINTS = "gpu_pipelines.channels"
#: Most recipients of one run.
MOST_ADDRESSES = 10
_SEE = "See docs/extending.md."


def split(given: str) -> tuple[str, str]:
    """The channel and the address of an entry of `notify`; an e-mail address may stand alone."""
    if is_mail_address(given) and given.partition(":")[0] not in _places():
        return EMAIL, given
    name, sign, address = given.partition(":")
    return (name, address) if sign else (EMAIL, given)


def is_email(given: str) -> bool:
    """Whether an entry of `notify` is for e-mail."""
    return split(given)[0] == EMAIL


def channel_named(name: str) -> Channel:
    """The channel with a name.

    Raises:
        UserError: there is none with that name, or it cannot be loaded.
    """
    if name not in (found := _places()):
        # The address after the name is not repeated: it may be a secret.
        raise UserError(f"notify names an unknown channel {name[:40]!r}.", nearest(name, found))
    channel: Channel = own_class(found[name], Channel, f"The channel {name}", _SEE)()
    return channel


def problems_of_addresses(
    notify: Sequence[str], mail: MailServer | None, variables: Sequence[str] | None = None
) -> list[str]:
    """Problems with the entries of `notify`, each with what to do.

    Args:
        notify: e-mail addresses, and channels with the places of their secrets:
            slack:projects/P/secrets/S/versions/latest.
        mail: the server for e-mails; None if it is not known, which skips its check.
        variables: names of the environment variables that the sender will have; None for any.
    """
    found = [f"notify has {len(notify)} addresses; at most {MOST_ADDRESSES} are told."]
    found = found if len(notify) > MOST_ADDRESSES else []
    for given in notify:
        name, address = split(given)
        try:
            channel = channel_named(name)
        except UserError as error:
            found.append(error.in_one_line)
            continue
        if channel.takes_secret:
            found += _problems_of_reference(name, address, variables)
        found += said_by_own(f"The channel {name}", channel.problems, address, mail, see=_SEE)
    if any(is_email(given) for given in notify) and mail and mail.password:
        found += _problems_of_variable("mail_password", mail.password, variables)
    return list(dict.fromkeys(found))


def _problems_of_reference(name: str, reference: str, variables: Sequence[str] | None) -> list[str]:
    if not (is_secret(reference) or is_variable(reference)):
        # Not repeated: it may be the secret itself, such as the address of a webhook.
        return [
            f"notify has {name}: with something behind it that names no secret. Whoever has the address of a webhook "
            f"can post there, so it stands in no file: give {name}: and {FORM}, where the address is."
        ]
    return _problems_of_variable(f"notify ({name})", reference, variables)


def _problems_of_variable(what: str, reference: str, variables: Sequence[str] | None) -> list[str]:
    if variables is None or not is_variable(reference) or reference in variables:
        return []
    return [
        f"{what} names the variable {reference}, which is not there where the message is sent. Give "
        "projects/PROJECT/secrets/SECRET/versions/VERSION of Secret Manager."
    ]


@cache
def _places() -> dict[str, str]:
    """The classes of all channels by name; those of this program take precedence."""
    return places_of(ENTRY_POINTS, "channel", _BUILT_IN)
