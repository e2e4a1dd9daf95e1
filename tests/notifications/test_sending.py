"""Messages go to servers that take them as Slack, Google Chat and mail servers do, and what arrives is compared."""

from __future__ import annotations

import base64
import html
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from servers import Posts, certificate_for_here, mail_server, webhook

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of
from gpu_pipelines.notifications import channels
from gpu_pipelines.notifications.channel import Channel, MailServer, NotSentError
from gpu_pipelines.notifications.channels import problems_of_addresses
from gpu_pipelines.notifications.message import Message, Metric
from gpu_pipelines.notifications.posting import post
from gpu_pipelines.notifications.sending import tell
from gpu_pipelines.notifications.slack import slack_body

SECRET = "projects/mine/secrets/hook/versions/latest"
PASSWORD = "open sesame"
MESSAGE = Message(
    outcome="not promoted",
    pipeline="scheduled_retraining",
    run="scheduled-retraining-1",
    reason="training: the source gs://bucket/a&b has changed",
    model="photos@4",
    metrics=(Metric("accuracy", 0.9123, 0.89, 0.93), Metric("loss", None)),
    gates=("accuracy>=0.95: accuracy is 0.9123, wanted >= 0.95",),
    cost="about $12.30, 1.50 h of training at $8.20 an hour",
    link="https://console.example.com/runs/1?project=p&x=<y>",
    ended="2026-11-23 03:10 UTC",
)
#: What somebody might have called a column, or a file.
HOSTILE = '<script>alert(1)</script> <!channel> <users/all> *x* </td>\r\nBcc: all@example.com "&amp;'


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> object:
    with webhook() as posts:
        monkeypatch.setenv("HOOK", posts.address)
        yield posts


def told(message: Message, *notify: str, mail: MailServer | None = None, **more: object) -> tuple[list[str], list[str]]:
    """Who was told, and what was said of that."""
    said: list[str] = []
    reached = tell(message, notify, mail or MailServer(), say=said.append, first_wait=0.01, **more)  # type: ignore[arg-type]
    return reached, said


def test_a_webhook_gets_everything_as_json(hook: Posts) -> None:
    reached, said = told(MESSAGE, "webhook:HOOK", "webhook:HOOK")
    assert (reached, said) == (["webhook:HOOK"], ["told the webhook that the run ended: not promoted"])
    (body,) = hook.bodies
    assert body["metrics"]["accuracy"] == {"value": 0.9123, "low": 0.89, "high": 0.93}
    assert body["metrics"]["loss"]["value"] is None
    given = ("outcome", "pipeline", "run", "reason", "model", "cost", "link", "ended")
    assert {name: body[name] for name in given} == {name: getattr(MESSAGE, name) for name in given}
    assert "Test metrics: accuracy 0.9123 (0.8900 to 0.9300); loss –" in body["text"].splitlines()


def test_slack_gets_blocks_of_plain_text(hook: Posts) -> None:
    told(MESSAGE, "slack:HOOK")
    (body,) = hook.bodies
    assert body["text"] == "scheduled_retraining not promoted: photos@4"
    header, facts, link = body["blocks"]
    assert header["text"] == {"type": "plain_text", "text": body["text"], "emoji": False}
    assert {field["type"] for field in facts["fields"]} == {"plain_text"}
    shown = [field["text"] for field in facts["fields"]]
    assert "Gates not passed: accuracy&gt;=0.95: accuracy is 0.9123, wanted &gt;= 0.95" in shown
    assert "Reason: training: the source gs://bucket/a&amp;b has changed" in shown
    assert link["text"]["text"] == "<https://console.example.com/runs/1?project=p&amp;x=%3Cy%3E|Open the run>"


@pytest.mark.parametrize("filler", ["m", "&"])
def test_slack_gets_as_much_of_a_long_title_as_it_shows(filler: str) -> None:
    message = replace(MESSAGE, model=f"{filler * 128}@12")
    header = slack_body(message)["blocks"][0]["text"]["text"]
    assert 145 < len(header) <= 150
    assert header.endswith("…")
    assert message.title.startswith(html.unescape(header[:-1]))


def test_google_chat_gets_a_card(hook: Posts) -> None:
    told(MESSAGE, "google-chat:HOOK")
    (body,) = hook.bodies
    assert body["fallbackText"] == "scheduled_retraining not promoted: photos@4"
    ((card,),) = ([each["card"]["sections"][0]["widgets"] for each in body["cardsV2"]],)
    facts = {each["decoratedText"]["topLabel"]: each["decoratedText"]["text"] for each in card[:-1]}
    assert facts["Cost"] == MESSAGE.cost
    assert facts["Reason"] == "training: the source gs://bucket/a&amp;b has changed"
    assert card[-1]["buttonList"]["buttons"][0]["onClick"]["openLink"]["url"] == MESSAGE.link


@pytest.mark.parametrize("at_once", [False, True])
def test_an_e_mail_goes_over_tls_with_a_login(tmp_path: Path, at_once: bool) -> None:
    certificate = certificate_for_here(tmp_path)
    environment = {"SSL_CERT_FILE": str(certificate), "MAIL_PASSWORD": PASSWORD}
    with mail_server(certificate, PASSWORD, at_once) as mails, pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        scheme = "smtps" if at_once else "smtp"
        server = MailServer(f"{scheme}://pipelines@localhost:{mails.port}", "runs@example.com", "MAIL_PASSWORD")
        reached, said = told(MESSAGE, "team@example.com", "boss@example.com", mail=server)
        assert reached == ["team@example.com", "boss@example.com"], said
        assert mails.logins == ["pipelines", "pipelines"]
        for name, wrong in (("SSL_CERT_FILE", ""), ("MAIL_PASSWORD", "another")):
            with pytest.MonkeyPatch.context() as again:
                again.setenv(name, wrong)
                reached, said = told(MESSAGE, "team@example.com", mail=server, whole=5.0)
                assert reached == []
                assert wrong not in said[0] or not wrong
                assert "not trusted" in said[0] if name == "SSL_CERT_FILE" else "refused" in said[0]
    by_recipient = {recipient: (sender, mail) for sender, (recipient,), mail in mails.taken}
    assert len(mails.taken) == len(by_recipient) == 2
    sender, mail = by_recipient["team@example.com"]
    assert (sender, mail["From"], mail["To"]) == ("runs@example.com", "runs@example.com", "team@example.com")
    assert mail["Subject"] == "scheduled_retraining not promoted: photos@4"
    plain, page = mail.get_body(("plain",)), mail.get_body(("html",))
    assert plain is not None
    assert page is not None
    assert plain.get_content().splitlines() == MESSAGE.text.splitlines()
    assert "accuracy is 0.9123, wanted &gt;= 0.95" in page.get_content()


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_is_quoted_stays_a_quotation(hook: Posts) -> None:
    hostile = replace(MESSAGE, pipeline=HOSTILE, reason=HOSTILE, model=HOSTILE, gates=[HOSTILE], link="javascript:x")
    with mail_server() as mails:
        server = MailServer(f"smtp://127.0.0.1:{mails.port}", "runs@example.com")
        reached, said = told(hostile, "slack:HOOK", "google-chat:HOOK", "webhook:HOOK", "a@example.com", mail=server)
    assert len(reached) == 4, said
    slack, chat, plain = (next(body for body in hook.bodies if key in body) for key in ("blocks", "cardsV2", "reason"))
    for texts in ([slack["text"]], [field["text"] for field in slack["blocks"][1]["fields"]]):
        assert not any("<" in text or ">" in text or "\n" in text for text in texts)
    widgets = chat["cardsV2"][0]["card"]["sections"][0]["widgets"]
    assert not any("<" in each["decoratedText"]["text"] for each in widgets)
    assert len(widgets) == len(hostile.facts), "an address that is none gets no button"
    assert plain["reason"] == HOSTILE, "JSON needs no other escape"
    ((_, _, mail),) = mails.taken
    assert mail["Bcc"] is None
    assert "Bcc: all@example.com" in mail["Subject"]
    page = mail.get_body(("html",))
    assert page is not None
    read = Tags()
    read.feed(page.get_content())
    assert read.tags == {"html", "head", "meta", "body", "h1", "table", "tr", "td"}
    assert "<script>alert(1)</script>" in read.text


def test_a_long_text_is_cut_before_slack_refuses_it(hook: Posts) -> None:
    told(replace(MESSAGE, model="<" * 400, reason="&" * 5000, gates=["x" * 900] * 9), "slack:HOOK")
    header, facts, _ = hook.bodies[0]["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(facts["fields"]) <= 10
    for field in facts["fields"]:
        assert len(field["text"]) <= 2000
        assert field["text"].replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").count("&") == 0


def test_what_passes_is_tried_again_and_what_does_not_is_not(hook: Posts) -> None:
    hook.answers += [(503, {}), (429, {"Retry-After": "0"}), (500, {})]
    assert told(MESSAGE, "webhook:HOOK")[0] == ["webhook:HOOK"]
    for status in (400, 403, 404, 410):
        hook.answers[:] = [(status, {})]
        reached, (said,) = told(MESSAGE, "webhook:HOOK")
        assert reached == []
        assert f"status {status}" in said
        assert not hook.answers, "it was asked once"
    assert len(hook.bodies) == 1
    hook.answers[:] = [(302, {"Location": "http://127.0.0.1:9/"})]
    assert "status 302" in told(MESSAGE, "webhook:HOOK")[1][0], "nobody is led elsewhere"
    hook.answers[:] = [(301, {})]
    assert "status 301" in told(MESSAGE, "webhook:HOOK")[1][0]


def test_a_mail_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    with mail_server() as mails:
        server = MailServer(f"smtp://127.0.0.1:{mails.port}", "runs@example.com")
        mails.refusals += ["451 later", "450 greylisted"]
        assert told(MESSAGE, "a@example.com", mail=server)[0] == ["a@example.com"]
        mails.refusals += ["550 no such user"]
        reached, (said,) = told(MESSAGE, "b@example.com", mail=server)
    assert reached == []
    assert "127.0.0.1 refused the e-mail (SMTPRecipientsRefused, 550)" in said
    assert len(mails.taken) == 1


def test_it_ends_in_time_and_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dripping(JsonHandler):
        """Sends a bit of its answer again and again, so that no read of the answer takes long."""

        def do_POST(self) -> None:
            self.body()
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            while not ended.wait(0.05):
                self.wfile.write(b".")

    ended = threading.Event()
    with webhook() as busy, webhook() as good, answering(server_of(Dripping)) as dripping:
        busy.answers += [(429, {"Retry-After": "3600"})]
        monkeypatch.setenv("BUSY", busy.address)
        monkeypatch.setenv("GOOD", good.address)
        monkeypatch.setenv("DRIPPING", dripping)
        dead = [f"slack:NOBODY{number}" for number in range(6)]
        for each in dead:
            monkeypatch.setenv(each.removeprefix("slack:"), "http://127.0.0.1:9/hook/very-secret")
        began = time.monotonic()
        reached, said = told(MESSAGE, "slack:BUSY", "webhook:DRIPPING", *dead, "webhook:GOOD", whole=0.5)
        took = time.monotonic() - began
        ended.set()
    assert took < 3, "they are told side by side"
    assert reached == ["webhook:GOOD"]
    assert "it was tried for 0.5 s" in said[0]
    assert said[1] == "warning: the webhook was not told of the end of the run: no whole answer came in 0.5 s"
    assert all("127.0.0.1 cannot be reached (ConnectionError)" in line for line in said[2:8])


def test_no_secret_is_in_what_is_said(hook: Posts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEAR", "http://hooks.example.com/services/very-secret-token")
    monkeypatch.setenv("NO_ADDRESS", "very-secret-token")
    monkeypatch.setenv("NO_HOST", "http://[very-secret-token/x")
    monkeypatch.setenv("NO_PORT", "https://127.0.0.1:65536/very-secret-token")
    hook.answers += [(400, {})]
    names = ("HOOK", "CLEAR", "NO_ADDRESS", "NO_HOST", "MISSING", "NO_PORT")
    reached, said = told(MESSAGE, *(f"slack:{name}" for name in names), whole=1.0)
    assert reached == []
    assert len(said) == 6
    assert not any("very-secret" in line or "T0000" in line for line in said), said
    assert "has to be encrypted" in said[1]
    assert "no variable MISSING" in said[4]
    assert "the secret is not an address such as" in said[5]


@pytest.mark.parametrize(
    "answer",
    [
        "no such hook: /h?key=short&token=very-secret-token",
        "no such hook: /h?token=very secret token",
        f"{'x' * 70}very-secret-token",
        "no\x1b such token",
    ],
)
def test_an_answer_is_repeated_only_without_the_secret(answer: str) -> None:
    class Echoes(JsonHandler):
        def do_POST(self) -> None:
            self.send_response(404)
            self.end_headers()
            self.wfile.write(answer.encode())

    token = quote("very secret token") if " secret " in answer else "very-secret-token"
    with answering(server_of(Echoes)) as address, pytest.raises(NotSentError) as raised:
        post(f"{address}/h?key=short&token={token}", {}, 5.0)
    shown = ": no such token" if answer == "no\x1b such token" else ""
    assert str(raised.value) == f"127.0.0.1 answered with status 404{shown}"


def test_an_address_may_be_in_secret_manager(hook: Posts, monkeypatch: pytest.MonkeyPatch) -> None:
    class Secrets(JsonHandler):
        def do_GET(self) -> None:
            if self.path == f"/v1/{SECRET}:access":
                self.send(200, {"payload": {"data": base64.b64encode(f"{hook.address}\n".encode()).decode()}})
            else:
                self.send(403, {"error": {"message": "Permission denied"}})

    with answering(server_of(Secrets)) as address:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", address)
        reached, said = told(MESSAGE, f"slack:{SECRET}", f"slack:{SECRET.replace('hook', 'other')}")
    assert reached == [f"slack:{SECRET}"]
    assert "Permission denied" in said[1]


def test_nothing_new_is_told_to_who_asks_for_it(hook: Posts) -> None:
    for outcome in ("nothing new", "too soon", "no drift"):
        quiet = replace(MESSAGE, outcome=outcome)
        assert told(quiet, "slack:HOOK") == ([], [])
        assert told(quiet, "slack:HOOK", about_nothing_new=True)[0] == ["slack:HOOK"]
    assert len(hook.bodies) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("somebody", "which is not an e-mail address"),
        ("teams:HOOK", "notify names an unknown channel 'teams'. Valid: email, google-chat, slack, webhook."),
        ("slak:HOOK", "Did you mean 'slack'?"),
        ("slack:https://hooks.slack.com/services/very-secret", "names no secret. Whoever has the address"),
        ("webhook:", "names no secret"),
        ("slack:VARIABLE", "names the variable VARIABLE, which is not there where the message is sent"),
        ("a@example.com", "An e-mail needs a server"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(given: str, said: str) -> None:
    found = problems_of_addresses([given], MailServer(), variables=())
    assert said in " ".join(found)
    assert "very-secret" not in " ".join(found)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (MailServer("smtp://user:very-secret@host", "a@b.de"), "mail_server is not an address of the form"),
        (MailServer("http://host", "a@b.de"), "mail_server is not an address of the form"),
        (MailServer("smtp://host:65536", "a@b.de"), "mail_server is not an address of the form"),
        (MailServer("smtp://user@host", "a@b.de"), "there is no mail_password"),
        (MailServer("smtp://host", "nobody"), "mail_sender is 'nobody'"),
        (MailServer("smtp://user@host", "a@b.de", "very secret"), "mail_password does not refer"),
        (MailServer("smtp://user@host", "a@b.de", "PASSWORD"), "mail_password names the variable PASSWORD"),
    ],
)
def test_what_is_wrong_with_a_mail_server_is_said(server: MailServer, said: str) -> None:
    found = " ".join(problems_of_addresses(["a@example.com"], server, variables=()))
    assert said in found
    assert "very" not in found


#: A channel of somebody's, who was not careful.
PAGER = """
from gpu_pipelines.notifications.channel import Channel

class Pager(Channel):
    title = "the pager"

    def send(self, message, address, mail, seconds):
        if address == "broken":
            raise RuntimeError(f"cannot reach {address} with very-secret")
        with open(address, "w") as file:
            file.write(message.title)
"""


def test_a_channel_of_a_package_is_found_and_may_fail(tmp_path: Path) -> None:
    information = tmp_path / "pager-1.0.dist-info"
    information.mkdir()
    (tmp_path / "pager_channel.py").write_text(PAGER)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: pager\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[gpu_pipelines.channels]\npager = pager_channel:Pager\n")
    code = (
        "from gpu_pipelines.notifications.sending import tell\n"
        "from gpu_pipelines.notifications.channel import MailServer\n"
        "from gpu_pipelines.notifications.message import Message\n"
        "import json, sys\n"
        "print(json.dumps(tell(Message('failed', 'mine'), ['pager:FILE', 'pager:BROKEN'], MailServer())))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "FILE": str(tmp_path / "page"), "BROKEN": "broken"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["pager:FILE"]
    assert (tmp_path / "page").read_text() == "mine failed"
    assert "the pager was not told of the end of the run: RuntimeError" in done.stderr
    assert "very-secret" not in done.stderr


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("json:JSONDecoder", "json:JSONDecoder is not a subclass of gpu_pipelines.notifications.channel.Channel."),
        ("gpu_pipelines.notifications.channel:Channel", "The channel pager does not define send."),
        ("no_such_module:A", "The channel pager cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_channel_is_refused(monkeypatch: pytest.MonkeyPatch, entry: str, told: str) -> None:
    monkeypatch.setattr(channels, "_places", lambda: {"pager": entry})
    (problem,) = problems_of_addresses(["pager:FILE"], None)
    assert told in problem


class Careless(Channel):
    """One that fails where it is asked what is wrong."""

    def problems(self, address: str, mail: MailServer | None) -> list[str]:
        raise KeyError(address)

    def send(self, message: Message, address: str, mail: MailServer, seconds: float) -> None:
        raise NotImplementedError


def test_a_channel_that_cannot_say_what_is_wrong_is_named_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_places", lambda: {"pager": f"{__name__}:Careless"})
    *_, problem = problems_of_addresses(["pager:very-secret"], None)
    assert problem.startswith("The channel pager cannot say what is wrong: its problems failed (test_sending.py, line ")
    assert problem.endswith(": KeyError). See docs/extending.md.")
