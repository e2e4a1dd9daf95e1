"""The reports of runs of pipelines of one's own: what steps are called, and who made what was reused."""

from __future__ import annotations

import cProfile
import json
import re
import time
from pathlib import Path

from conftest import gpu_pipelines, newest_run

from gpu_pipelines.artifacts.checkpoint import write_configuration
from gpu_pipelines.evaluation.trainings import named_by_settings
from gpu_pipelines.reports.training_progress import training_progress

TURNS = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(text: str, page: dsl.Output[dsl.HTML], times: int = 2):
    open(page.path, "w").write(f"<p>{text * times}</p>")


@dsl.pipeline(name="turns")
def turns(texts: list = ["a", "b"]):
    with dsl.ParallelFor(texts, parallelism=1) as text:
        write(text=text)
"""


def steps_in(page: str) -> list[str]:
    return re.findall(r'<td[^>]* class="name"[^>]*>([^<]*)</td>', page)


def test_turns_of_a_loop_are_called_by_what_they_were_told_also_where_they_are_reused(tmp_path: Path) -> None:
    (tmp_path / "turns.py").write_text(TURNS)
    done = gpu_pipelines("run", "turns.py", cwd=tmp_path)
    assert done.status == 0, done.out + done.err
    first = newest_run(tmp_path)
    page = (first["directory"] / "report.html").read_text()
    assert steps_in(page) == ["write (text=a)", "write (text=b)"]
    links = re.findall(r'<td class="key">write \((.*)\)</td><td><a href="(.*)">page</a>', page)
    found = {turn: (first["directory"] / link).read_text() for turn, link in links}
    assert found == {"text=a": "<p>aa</p>", "text=b": "<p>bb</p>"}
    again = gpu_pipelines("run", "turns.py", "--cache", "-p", "texts=a,b,c", cwd=tmp_path)
    assert again.status == 0, again.out + again.err
    second = newest_run(tmp_path)
    page = (second["directory"] / "report.html").read_text()
    assert [step["status"] for step in second["steps"]] == ["reused", "reused", "succeeded"]
    assert steps_in(page)[:2] == ["write (text=a)", "write (text=b)"]
    made = f"../{first['directory'].name}/report.html"
    assert page.count(f'href="{made}">made by {first["directory"].name}<') == 2
    assert (second["directory"] / made).is_file()
    links = re.findall(r'<td class="key">write[^<]*</td><td><a href="(.*)">page</a>', page)
    assert {(second["directory"] / link).read_text() for link in links} == {"<p>aa</p>", "<p>bb</p>", "<p>cc</p>"}


def test_trainings_of_a_loop_are_called_by_what_they_were_told_alone() -> None:
    one, two = "0123456789abcdef", "fedcba9876543210"
    told = {one: {"seed": 1, "model": "a"}, two: {"seed": 2, "model": "a"}}
    assert named_by_settings(told) == {one: "seed=1", two: "seed=2"}
    assert named_by_settings({**told, "train-model": {}}) == {one: "seed=1", two: "seed=2"}
    assert named_by_settings({"turn-0": {"seed": 1}, "turn-1": {"seed": 2}}) == {}
    assert named_by_settings({one: {"seed": 1}, two: {"seed": 1}}) == {}, "told the same, of other data"
    long = {one: {"model": "m" * 70}, two: {"model": "n" * 70}}
    assert named_by_settings(long) == {}


def test_how_far_a_training_is_is_read_from_what_it_writes(tmp_path: Path) -> None:
    begun = time.time()
    assert training_progress(tmp_path, begun) is None
    folder = tmp_path / "run/train-model"
    folder.mkdir(parents=True)
    entries = [
        {"step": 10, "loss": 0.75, "samples_per_second": 64.0},
        {"step": 10, "val_loss": 0.5},
    ]
    # The last line is just being written.
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in entries) + '{"step": 1')
    of_script = training_progress(tmp_path, begun)
    assert of_script is not None
    assert (of_script.step, of_script.total, of_script.percent) == (10, 0, 0.0)
    assert of_script.figures == {"loss": "0.7500", "loss on val": "0.5000", "samples/s": "64"}
    write_configuration(folder, {"total_steps": 40, "settings": {"global_batch_size": 64}})
    progress = training_progress(tmp_path, begun)
    assert progress is not None
    assert (progress.total, progress.percent) == (40, 25.0)
    assert progress.figures["left"] == "about 30.0 s"
    assert training_progress(tmp_path, begun + 60) is None, "of another training, before"
    # Of a long training only the lines are read that are shown, however many stand before them.
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(f'\n{{"step": {step}, "loss": 0.25}}' for step in range(11, 1011))
    profile = cProfile.Profile()
    progress = profile.runcall(training_progress, tmp_path, begun)
    assert progress is not None
    assert (progress.step, progress.figures["loss on val"]) == (1010, "0.5000")
    assert sum(each.callcount for each in profile.getstats() if getattr(each.code, "co_name", "") == "loads") < 10
    # A script may write anything.
    others = ['{"step": "epoch 1", "loss": 1}', '{"step": null}', '{"step": NaN}']
    (folder / "metrics.jsonl").write_text("\n".join(others))
    assert training_progress(tmp_path, begun) is None
