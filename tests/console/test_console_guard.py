"""Nobody but the console's own user sees or changes anything, and nothing that is shown becomes a part of a page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from console_of_tests import ADDRESS, Page, made_run, registered, unescaped

from gpu_pipelines.artifacts.documents import write_document

PAGES = (
    "/",
    "/runs",
    "/runs/rows",
    "/pipelines",
    "/schedules",
    "/models",
    "/runs/local/one",
    "/runs/local/one/log?task=x",
)
ACTIONS = ("/pipelines", "/runs/local/one/stop", "/models/local/digits/promote", "/schedules/1/pause", "/pipelines/a:b")
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def page(tmp_path: Path) -> Page:
    made_run(tmp_path, "one")
    registered(tmp_path, "digits", 0.91, 0.95)
    return Page(tmp_path)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_shown_to_nobody_without_the_cookie(page: Page, path: str) -> None:
    page.cookies.clear()
    answer = page.get(path, follow_redirects=False)
    assert answer.status_code == 403
    assert "Open the address" in answer.text
    assert "one" not in answer.text.replace("console", "")
    assert page.get(f"/?token={page.console.held.token}x").status_code == 403
    assert not page.cookies


@pytest.mark.parametrize("path", ACTIONS)
def test_no_action_without_the_cookie_nor_without_the_word_of_a_page(page: Page, path: str) -> None:
    held = page.console.held
    sent = {"version": "2", "seen": "1"}
    for word in ("", "x", held.token, held.session):
        assert page.post(path, data={**sent, "csrf": word}).status_code == 403
    page.cookies.clear()
    assert page.post(path, data={**sent, "csrf": held.csrf}).status_code == 403
    # The token in the address of a form of another page gives no cookie, and is none.
    assert page.post(f"{path}?token={held.token}", data={**sent, "csrf": held.csrf}).status_code == 403
    assert page.console.local_models.model("digits").champion == 1


def test_another_name_of_this_machine_is_refused(page: Page) -> None:
    for host in (
        "evil.example",
        "evil.example:8991",
        "127.0.0.1.evil.example",
        "10.0.0.1:8991",
        "",
        "[::2]:8991",
        "[x",
    ):
        assert page.get("/runs", headers={"host": host}).status_code == 421, host
    for host in ("localhost:8991", "127.0.0.1:9000", "[::1]:8991"):
        # httpx sends cookies by the address that it asks, which stays.
        assert page.get("/runs", headers={"host": host}).status_code == 200, host


def test_a_form_of_another_page_is_refused(page: Page) -> None:
    sent = {"csrf": page.console.held.csrf, "version": "2", "seen": "1"}
    for origin in ("http://evil.example", "http://127.0.0.1:8080", "null"):
        answer = page.post("/models/local/digits/promote", data=sent, headers={"origin": origin})
        assert answer.status_code == 403, origin
    assert page.console.local_models.model("digits").champion == 1
    assert page.post("/models/local/digits/promote", data=sent, headers={"origin": ADDRESS}).status_code == 200
    assert page.console.local_models.model("digits").champion == 2


def test_the_cookie_is_for_this_site_alone_and_no_script_sees_it(page: Page) -> None:
    page.cookies.clear()
    answer = page.get(f"/?token={page.console.held.token}")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert page.console.held.token not in cookie + answer.text


def test_each_answer_says_what_a_browser_may_do_with_it(page: Page) -> None:
    for path in (*PAGES, "/static/console.css", "/nowhere"):
        headers = page.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"], path
        assert "unsafe-inline" not in headers["content-security-policy"].partition("style-src-attr")[0], path
        assert headers["x-content-type-options"] == "nosniff", path
    policy = page.get("/runs/local/one/page/report").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-same-origin; default-src 'none'")
    assert "script" not in policy


WAYS_OUT = (
    "..",
    "../secret",
    "..%2fsecret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "one/../../secret",
    "/etc/passwd",
    ".",
)


@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_address_leads_out_of_the_folders(tmp_path: Path, page: Page, way: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "run.json").write_text("the secret")
    (tmp_path / "secret.yaml").write_text("the secret")
    # A run that is no run of the folder.
    outside = made_run(tmp_path, "two", parameters={"source": "the secret"}).directory
    (outside / "run.json").rename(tmp_path / "run.json")
    for path in (
        f"/runs/local/{way}",
        f"/runs/local/one/page/{way}",
        f"/runs/local/one/page/logs/{way}",
        f"/runs/local/one/log?task={way}",
        f"/models/local/{way}",
        f"/pipelines/file:{way}",
        f"/pipelines/file:../../{way}",
        f"/pipelines/project:{way}",
        f"/compare?run=local/{way}&run=local/one",
        f"/pipelines/project:train_evaluate_upload?like=local/{way}",
        f"/static/{way}",
    ):
        answer = page.get(path)
        assert "the secret" not in answer.text, path
        assert "root:" not in answer.text, path
        assert answer.status_code != 500, path


def test_a_link_out_of_a_run_is_not_followed(tmp_path: Path, page: Page) -> None:
    (tmp_path / "secret").write_text("the secret")
    place = tmp_path / "runs" / "one"
    for path in (place / "report.html", place / "logs" / "train-model.log"):
        path.unlink()
        path.symlink_to(tmp_path / "secret")
    assert "is not in" in page.text("/runs/local/one/page/report", 404)
    assert "is not in" in page.text("/runs/local/one/log?task=train-model", 404)
    pages = [{"step": "a", "name": "b", "path": str(tmp_path / "secret")}]
    made_run(tmp_path, "two", pages=pages)
    assert "the secret" not in page.text("/runs/local/two/page/0", 404)


def test_names_of_anybody_stay_text(tmp_path: Path) -> None:
    odd = {SCRIPT: SCRIPT, '"><img src=x onerror=alert(1)>': "'\"><b>"}
    pages = [{"step": SCRIPT, "name": SCRIPT, "path": "x"}]
    for number, status in enumerate(("succeeded", "failed")):
        run = made_run(
            tmp_path,
            f"run-{number}",
            status=status,
            pipeline=SCRIPT,
            parameters={**odd, "number": number},
            outputs=odd,
            pages=pages,
            dependencies={SCRIPT: []},
            metrics={SCRIPT: 1.0 + number},
            key_metric=SCRIPT,
            reason=SCRIPT,
        )
        run.steps[0].name, run.steps[0].status, run.steps[0].message = SCRIPT, status, SCRIPT
        run.save()
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "run.json").write_text(SCRIPT)
    spec = f"""
pipelineInfo: {{name: "{SCRIPT}", description: "{SCRIPT}"}}
root:
  inputDefinitions:
    parameters:
      "{SCRIPT}": {{parameterType: STRING, description: "{SCRIPT}", defaultValue: '"><script>alert(1)</script>'}}
  dag: {{tasks: {{}}}}
deploymentSpec: {{}}
"""
    page = Page(tmp_path)
    dropped = page.drop(spec.encode()).headers["location"]
    registry = registered(tmp_path, "digits", 0.95)
    # By another program: this one takes no such alias.
    aliases = {"name": "digits", "aliases": {SCRIPT: 1, "champion": 1}}
    write_document(registry.root / "digits/model.json", aliases)
    for path in (
        "/runs",
        f"/runs?q={SCRIPT}&status={SCRIPT}&place={SCRIPT}",
        "/runs/local/run-0",
        "/runs/local/run-1",
        "/runs/local/run-1/live",
        f"/runs/local/run-1?task={SCRIPT}&accelerator={SCRIPT}",
        f"/runs/local/run-1/report?key={SCRIPT}",
        "/compare?run=local/run-0&run=local/run-1",
        "/compare?run=local/run-0",
        "/pipelines",
        dropped,
        "/runs/local/<script>alert(1)",
        "/models",
        "/models/local/digits",
    ):
        text = page.get(path).text
        assert unescaped(text, "&lt;script&gt;alert"), path
        assert not unescaped(text, "<script>alert"), path
        assert not unescaped(text, "<img src=x"), path


def test_what_is_dropped_is_limited_and_never_more_than_data(tmp_path: Path, page: Page) -> None:
    assert page.drop(b"x" * (5 * 2**20)).status_code == 413
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    made = tmp_path / "made"
    for content, told in (
        (b"", "No file was sent"),
        (b"\xff\xfe\x00", "is not text"),
        (b"a: [", "is not YAML"),
        (b"- 1", "is not a compiled pipeline"),
        (b"root: 1", "is not a compiled pipeline"),
        (b"{root: {}, deploymentSpec: {}, components: 3}", "is not a compiled pipeline"),
        (bomb.encode(), "stands for"),
        (
            f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{made}']]".encode(),
            "not YAML",
        ),
    ):
        answer = page.drop(content, "../../evil.yaml")
        assert answer.status_code == 422, content
        assert told in answer.text, (told, answer.text)
    assert not made.exists()
    assert not list(tmp_path.rglob("evil*"))


def test_a_body_that_is_no_form_is_refused(page: Page) -> None:
    for kind, body in (
        ("application/json", b'{"csrf": "x"}'),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\nbroken"),
        ("application/x-www-form-urlencoded", b"\xff=\xff&" * 5000),
        ("", io.BytesIO(b"x" * 100).read()),
    ):
        assert page.post("/pipelines", content=body, headers={"content-type": kind}).status_code == 403, kind
