"""The console in a browser: a file dropped, its run watched and compared, a version promoted; widths and themes."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accessibility import wrong_in
from console_of_tests import CONSOLE, evaluated, made_run, registered

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SMALL = Path(__file__).parents[1] / "pipeline" / "small.py"
WIDTHS = (400, 720, 1010, 1600)
#: Drops a file on the page, as a hand does.
DROP = """
([name, content]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(content), (each) => each.charCodeAt(0))], name));
  for (const kind of ["dragenter", "dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and models of before."""
    place = tmp_path_factory.mktemp("console")
    for name, accuracy in (("a", 0.5), ("b", 0.9)):
        best = evaluated(place / f"model-{name}", accuracy)
        made_run(place, f"train-{name}", artifacts={"best_checkpoint": str(best)}, parameters={"seed": accuracy})
    failed = made_run(place, "failed", status="failed", pipeline="other")
    failed.steps[2].status, failed.steps[2].message = "failed", "The gate could not be read.\n  Mend it."
    failed.save()
    (place / "runs" / "damaged").mkdir()
    (place / "runs" / "damaged" / "run.json").write_text("{")
    registered(place, "digits", 0.91, 0.95, 0.5)
    return place


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a console, with its token."""
    with subprocess.Popen(CONSOLE, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield re.findall(r"http://\S+", process.stdout.readline())[0]
        process.send_signal(signal.SIGTERM)


def opened(browser: Any, address: str, width: int = 1200, scheme: str = "light") -> Any:
    """A page that has taken the token, and lets no error of a script or of the policy pass."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.goto(address)
    page.wait_for_url("**/runs")
    return page


def small() -> bytes:
    """A pipeline of two small steps, compiled."""
    program = f"""
import sys; sys.path.insert(0, {str(SMALL.parent)!r})
import small, tempfile, pathlib
from kfp import compiler
path = pathlib.Path(tempfile.mkdtemp()) / "small.yaml"
compiler.Compiler().compile(small.small, str(path))
print(path.read_text())
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout


def test_from_a_dropped_file_to_a_comparison(chromium: Any, address: str, folder: Path) -> None:
    page = opened(chromium, address)
    page.get_by_role("link", name="Pipelines").click()
    page.evaluate(DROP, ["small.yaml", base64.b64encode(small()).decode()])
    page.wait_for_url("**/pipelines/file*")
    page.get_by_label("value", exact=True).fill("x")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("alert").wait_for()
    assert "value takes a whole number" in page.get_by_role("alert").inner_text()
    page.get_by_label("value", exact=True).fill("7")
    page.get_by_label("seconds", exact=True).fill("3")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url("**/runs/local/small-*", timeout=60_000)
    # It goes on, and nobody loads the page again.
    page.evaluate("window.same = true")
    page.locator(".headline", has_text="Running: double.").wait_for(timeout=30_000)
    page.locator("pre.log", has_text="doubling 7").wait_for(timeout=30_000)
    page.locator(".headline", has_text="It has succeeded.").wait_for(timeout=60_000)
    assert page.evaluate("window.same")
    assert "It has succeeded." in page.locator("#announcer").inner_text()
    assert page.locator("svg.dag.across rect[stroke='var(--good)']").count() == 2
    assert "KFP Executor" not in page.locator("pre.log").inner_text()
    page.get_by_label("with KFP's own lines").check()
    page.locator("pre.log", has_text="KFP Executor").wait_for()
    page.get_by_role("link", name="log of double").click()
    page.locator("pre.log", has_text="doubling 7").wait_for()
    page.get_by_role("link", name="Start it again").click()
    assert page.get_by_label("value", exact=True).input_value() == "7"
    page.get_by_label("value", exact=True).fill("8")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url("**/runs/local/small-*", timeout=60_000)
    page.locator(".headline", has_text="It has succeeded.").wait_for(timeout=60_000)
    page.get_by_role("navigation").get_by_role("link", name="Runs").click()
    boxes = page.locator("tbody tr", has_text="small-").get_by_role("checkbox")
    assert boxes.count() == 2
    for place in (0, 1):
        boxes.nth(place).check()
    page.get_by_role("button", name="Compare two").click()
    page.get_by_role("heading", name="Two runs compared").wait_for()
    assert page.locator("section", has_text="Parameters that differ").locator("tbody tr").count() == 1
    assert page.locator("tr", has_text="quality").inner_text().split()[1:4] == ["1.6000", "1.4000", "−0.2000"]
    # The only error is the status of the refusal.
    assert [said for said in page.said if "422" not in said] == []


def test_curves_over_each_other_and_a_version_promoted(chromium: Any, address: str, folder: Path) -> None:
    page = opened(chromium, address)
    for name in ("train-a", "train-b"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare two").click()
    page.get_by_role("heading", name="Curves").wait_for()
    assert page.locator("#curves-title ~ .charts figure svg").count() == 2
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="digits").click()
    page.get_by_label("New champion").select_option("2")
    page.get_by_role("button", name="Promote").click()
    page.locator("tr.best", has_text="version 2").wait_for()
    page.get_by_label("New champion").select_option("3")
    page.get_by_role("button", name="Promote").click()
    assert "has not passed its gates" in page.get_by_role("alert").inner_text()
    page.get_by_label("New champion").select_option("3")
    page.get_by_label("in spite of gates").check()
    page.get_by_role("button", name="Promote").click()
    page.locator("tr.best", has_text="version 3").wait_for()
    assert '"champion": 3' in (folder / "registry" / "digits" / "model.json").read_text()
    # The only error is the status of the refusal.
    assert [said for said in page.said if "422" not in said] == []


PAGES = (
    "/runs",
    "/runs/local/failed",
    "/runs/local/train-b",
    "/compare?run=local/train-a&run=local/train-b",
    "/compare?run=local/train-a",
    "/pipelines",
    "/pipelines/project:train_evaluate_upload",
    "/schedules",
    "/models",
    "/models/local/digits",
    "/runs/local/train-a/report?key=report",
    "/nowhere",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_everybody_can_use_each_page_at_each_width(chromium: Any, address: str, width: int, scheme: str) -> None:
    page = opened(chromium, address, width, scheme)
    host = address.split("/?")[0]
    wrong = {}
    for path in PAGES:
        page.goto(host + path)
        if found := wrong_in(page):
            wrong[path] = found
    assert wrong == {}
    assert [said for said in page.said if "404" not in said] == []


def test_a_run_with_a_long_name_makes_no_page_wider(chromium: Any, address: str, folder: Path) -> None:
    name = "a-pipeline-with-a-long-name-" * 6
    made_run(folder, name)
    page = opened(chromium, address, 1200)
    wrong = {}
    for path in ("/runs", f"/runs/local/{name}", "/compare?run=local/train-a"):
        page.goto(address.split("/?")[0] + path)
        if found := wrong_in(page):
            wrong[path] = found
    shutil.rmtree(folder / "runs" / name)
    assert wrong == {}


def test_the_check_of_pages_finds_what_is_wrong(chromium: Any, address: str) -> None:
    page = opened(chromium, address, 400)
    page.goto(address.split("/?")[0] + "/pipelines")
    page.evaluate("""() => {
      document.querySelector("h1").style.color = "#ddd";
      document.querySelector("label").remove();
      document.querySelector("p.small").style.color = "#999";
      document.querySelector("button").textContent = "";
      document.querySelector("table").style.width = "900px";
      document.body.insertAdjacentHTML("beforeend", "<h4 id=main>deep</h4>");
    }""")
    found = "\n".join(wrong_in(page))
    for part in ("contrast 1.", "contrast 2.", "no label", "no name", "wider by", "twice the id main", "is of level 4"):
        assert part in found, found


def test_a_page_is_used_without_a_mouse(chromium: Any, address: str) -> None:
    page = opened(chromium, address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_label("Compare train-a").focus()
    page.keyboard.press("Space")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(ring) == "solid"
    # A table that is read again keeps what is ticked and where the focus is.
    page.evaluate("replace(document.getElementById('rows'), document.getElementById('rows').innerHTML)")
    assert page.evaluate("document.activeElement.id") == "t-local-train-a"
    assert page.get_by_label("Compare train-a").is_checked()


def test_without_scripts_the_pages_say_the_same(chromium: Any, address: str) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    page.wait_for_url("**/runs")
    page.goto(address.split("/?")[0] + "/runs/local/failed")
    assert "The gate could not be read." in page.locator("main").inner_text()
    page.goto(address.split("/?")[0] + "/pipelines")
    assert page.get_by_role("button", name="Open its form").is_visible()
