"""A source that another package brings: one file and one entry point, and it is used as it says of itself."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import PIPELINE, gpu_pipelines, printed_by, run_pipeline
from preparing import start, units_done
from ray_cluster import ray_cluster

from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings

#: Tables of SQLite: their parts are ranges of row numbers, and the file's header counts its changes.
SQLITE = """
import os
import re
import sqlite3
from contextlib import closing

from gpu_pipelines.data.sources.source import Service, SourceFiles
from gpu_pipelines.errors import UserError

ROWS = 100


class Tables(Service):
    title, example, scheme = "a table of SQLite", "sqlite://PATH?table=NAME", "sqlite://"
    form = (re.compile(r"(/[^?]+)[?]table=(\\w+)"), "a table is sqlite:///PATH?table=NAME.")

    def _parts(self, uri):
        return self.form[0].fullmatch(uri.removeprefix(self.scheme))

    def is_read_anywhere(self, uri):
        return False

    def _asked(self, uri, text, *values):
        path, table = self._parts(uri).groups()
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                yield from database.execute(text.replace("TABLE", table), values)
        except sqlite3.Error as error:
            raise UserError(f"{uri} cannot be read: {error}.", "Give a table of SQLite.") from None

    def _columns(self, settings):
        has = [name for _, name, *_ in self._asked(settings.source, "PRAGMA table_info(TABLE)")]
        return settings.columns_of(has)

    def require_readable(self, settings):
        self._columns(settings)

    def open(self, settings, scratch):
        columns = self._columns(settings)
        ((last,),) = self._asked(settings.source, "SELECT coalesce(max(rowid), 0) FROM TABLE")
        names = tuple(f"{first}-{first + ROWS - 1}" for first in range(1, last + 1, ROWS))
        sizes = (ROWS * 8 * len(columns),) * len(names)
        return SourceFiles(
            "sqlite", f"{settings.source}:", names, sizes, columns, given=settings.source, service=self
        )

    def rows(self, files, columns, meter):
        chosen = columns or list(files.columns)
        for file, name in zip(files, files.names):
            select = f"SELECT rowid, {', '.join(chosen)} FROM TABLE WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
            for number, *values in self._asked(files.given, select, *map(int, name.split("-"))):
                if str(number) == os.environ.get("KILLED_AT"):
                    os.kill(os.getpid(), 9)
                yield file, (f"row {number}", dict(zip(chosen, values)))
            meter.finish_file()

    def state(self, uri, billing_project):
        with open(self._parts(uri)[1], "rb") as file:
            return [uri, file.read(28)[24:].hex()]


class Feeds(Tables):
    scheme, is_repeatable = "feed://", False
    form = (Tables.form[0], "a table is feed:///PATH?table=NAME.")
"""
#: Sources that would take the names of others.
GREEDY = """
from sqlite_source import Tables


class All(Tables):
    scheme = ""


class Taken(Tables):
    scheme = "bq://"


class Failing(Tables):
    scheme = "fail://"

    def matches(self, uri):
        return uri[1000] == "/"
"""
TASK = {"task": "regression", "label_column": "y", "val_fraction": 0.2, "test_fraction": 0.2}
#: Bytes of a unit of work: of two parts of the table, and of all.
UNIT, ALL = 4000, 1 << 30


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder into which the package is installed, beside one that cannot be imported; processes look there."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sqlite_source.py").write_text(SQLITE)
    (folder / "broken_source.py").write_text("import no_such_module_at_all\n")
    (folder / "greedy_source.py").write_text(GREEDY)
    (folder / "ending_source.py").write_text("raise SystemExit(3)\n")
    packages = {
        "sqlite": ("Tables", "Feeds"),
        "broken": ("Broken",),
        "greedy": ("All", "Taken", "Failing"),
        "ending": ("End",),
    }
    for name, entries in packages.items():
        info = folder / f"{name}_source-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-source\nVersion: 1.0\n")
        lines = [f"{each.lower()} = {name}_source:{each}\n" for each in entries]
        (info / "entry_points.txt").write_text("".join(["[gpu_pipelines.sources]\n", *lines]))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "points.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE points (a REAL, b REAL, y REAL, note TEXT)")
        made.executemany("INSERT INTO points VALUES (?, ?, ?, '')", [(n, n % 7, 3 * n - n % 7) for n in range(950)])
        made.execute("UPDATE points SET a = NULL WHERE rowid = 17")
        made.execute("ALTER TABLE points DROP COLUMN note")
    return path


def manifest(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / "dataset.json").read_text())
    return content


def test_a_dataset_of_it_is_that_of_the_same_rows_in_a_file(database: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(source=f"sqlite://{database}?table=points", **TASK)
    made = start(settings, tmp_path / "there", str(tmp_path / "work"), ALL)
    assert made.wait() == 0, made.output
    assert "warning: the source broken of broken-source is left out: " in made.output
    assert "No module named 'no_such_module_at_all'" in made.output
    assert "warning: the source all of greedy-source is left out: it has neither a scheme nor a matches" in made.output
    assert "the source taken of greedy-source is left out: bq:// is the scheme of a table in BigQuery." in made.output
    failed = "its matches failed (greedy_source.py, line 17: IndexError)"
    assert f"warning: the source greedy_source:Failing is left out: {failed}" in made.output
    assert "the source end of ending-source is left out: " in made.output
    with closing(sqlite3.connect(database)) as kept:
        rows = [
            ",".join("" if value is None else str(value) for value in row)
            for row in kept.execute("SELECT * FROM points")
        ]
    (tmp_path / "points.csv").write_text("\n".join(["a,b,y", *rows]))
    here = prepare_data(PrepareSettings(source=str(tmp_path / "points.csv"), **TASK), tmp_path / "here")
    there = manifest(tmp_path / "there")
    assert there["fingerprint"] == here.fingerprint
    assert (there["rows_read"], there["rejected"], there["files_read"]) == (950, {"no number in 'a'": 1}, 0)
    rejected = json.loads((tmp_path / "there/rejected.jsonl").read_text())
    assert rejected["source"] == "row 17"
    # The next run sees by the state of the database that there is a new row.
    with closing(sqlite3.connect(database)) as changed, changed:
        changed.execute("INSERT INTO points VALUES (950, 5, 2845)")
    again = start(settings, tmp_path / "again", str(tmp_path / "work"), ALL)
    assert again.wait() == 0, again.output
    assert "were done before" not in again.output
    assert manifest(tmp_path / "again")["rows_read"] == 951
    assert manifest(tmp_path / "again")["source_fingerprint"] != there["source_fingerprint"]


@pytest.mark.slow
def test_a_pipeline_reads_it(database: Path, tmp_path: Path) -> None:
    given = {"source": f"sqlite://{database}?table=points", "task": "regression", "label_column": "y", "max_steps": 2}
    done = run_pipeline(tmp_path, apart=True, **given)
    assert done.status == 0, done.err
    assert "prepare-data: kept 949 of 950 rows, left out 0 duplicates, rejected 1" in done.out
    assert "registered points version 1 as challenger and champion" in done.out


def test_what_was_interrupted_is_continued(database: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(source=f"sqlite://{database}?table=points", **TASK)
    alone = start(settings, tmp_path / "alone", str(tmp_path / "work"), UNIT)
    assert alone.wait() == 0, alone.output
    whole = sha256_of_tree(tmp_path / "alone")
    base = str(tmp_path / "interrupted")
    first = start(settings, tmp_path / "out", base, UNIT, {"KILLED_AT": "640"})
    assert first.wait() == -signal.SIGKILL
    done = len(units_done(base))
    assert done > 1
    again = start(settings, tmp_path / "out", base, UNIT)
    assert again.wait() == 0, again.output
    assert f"{done} units of work were done before" in again.output
    assert sha256_of_tree(tmp_path / "out") == whole


@pytest.mark.slow
def test_two_machines_share_what_comes_the_same_each_time(database: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(source=f"sqlite://{database}?table=points", **TASK)
    feed = replace(settings, source=f"feed://{database}?table=points")
    alone = start(settings, tmp_path / "alone", str(tmp_path / "work"), UNIT)
    assert alone.wait() == 0, alone.output
    with ray_cluster(nodes=2) as cluster:
        both = start(replace(settings, ray_address=cluster.address), tmp_path / "both", str(tmp_path / "shared"), UNIT)
        assert both.wait() == 0, both.output
        other = start(
            replace(feed, ray_address=cluster.address), tmp_path / "other", str(tmp_path / "other-work"), UNIT
        )
        assert other.wait() == 1
    assert sha256_of_tree(tmp_path / "both") == sha256_of_tree(tmp_path / "alone")
    assert f"The source {feed.source} is read by one machine." in other.output


def test_one_whose_rows_come_otherwise_each_time_is_read_by_one_machine_from_the_beginning(
    database: Path, tmp_path: Path
) -> None:
    settings = PrepareSettings(source=f"feed://{database}?table=points", **TASK)
    first = start(settings, tmp_path / "out", str(tmp_path / "work"), UNIT, {"KILLED_AT": "640"})
    assert first.wait() == -signal.SIGKILL
    again = start(settings, tmp_path / "out", str(tmp_path / "work"), UNIT)
    assert again.wait() == 0, again.output
    told = printed_by(
        "from gpu_pipelines.data.settings import PrepareSettings\n"
        f"print(PrepareSettings(source={settings.source!r}, task='regression', label_column='y').problems_on_nodes(2))"
    )
    assert f"The source {settings.source} is read by one machine." in told
    assert "were done before" not in again.output


def test_a_wrong_name_or_parameter_is_refused_before_anything_runs(database: Path, tmp_path: Path) -> None:
    request = ("run", PIPELINE, "-p", "task=regression", "-p", "source=sqlite://points")
    wrong = gpu_pipelines(*request, cwd=tmp_path, apart=True)
    assert wrong.status == 2
    assert "source is 'sqlite://points'; a table is sqlite:///PATH?table=NAME." in wrong.err
    assert "Traceback" not in wrong.err
    step = start(PrepareSettings(source="sqlite://points", **TASK), tmp_path / "out", str(tmp_path / "work"), UNIT)
    assert step.wait() == 1
    assert "error: source is 'sqlite://points'; a table is sqlite:///PATH?table=NAME." in step.output
    assert "Traceback" not in step.output
    given = f"source='sqlite://{database}?table=points', task='regression', label_column='y'"
    problems = printed_by(
        "from gpu_pipelines.data.settings import PrepareSettings as S\n"
        "from gpu_pipelines.data.source_check import problems_here\n"
        f"print(S({given}).problems(), S({given}, test_source='feed://x').problems())\n"
        f"print(S({given}, row_filter='a > 1', source_format='csv').problems())\n"
        f"print(problems_here(S({given})), problems_here(S({given}, slice_by='z')))\n"
        f"print(problems_here(S({given.replace('points.db', 'gone.db')})))\n"
        "from pathlib import Path\n"
        "from gpu_pipelines.prediction.settings import PredictSettings as P\n"
        "from gpu_pipelines.prediction.source_rows import Inputs, RowSource\n"
        f"rows = P(source='sqlite://{database}?table=points').rows('regression')\n"
        "print(RowSource(rows, Inputs('numbers', 'values', ('b', 'a')), '', Path()).columns)\n"
    )
    right, parameters, columns, gone, predicted = problems.splitlines()
    assert right == """[] ["test_source is 'feed://x'; a table is feed:///PATH?table=NAME."]"""
    uri = f"sqlite://{database}?table=points"
    assert f"row_filter is for a table in BigQuery (bq://…), not for {uri}; filter the rows before." in parameters
    assert f"source_format is 'csv', but {uri} is not a file; leave it at auto." in parameters
    assert predicted == "('b', 'a')"
    assert columns.startswith("[] [")
    assert "has no column" in columns
    assert "cannot be read: unable to open database file. Give a table of SQLite." in gone


def test_a_target_is_told_whether_its_steps_reach_it(database: Path) -> None:
    code = (
        "from gpu_pipelines.targets.vertex.vertex import Vertex\n"
        "names = ['sqlite:///x.db?table=y', 'bq://p.d.t', 'sample:digits', 'gs://b/x', 'gs://b/q.sql', 'q.sql']\n"
        "print([name for name in names if Vertex().can_read(name)])\n"
    )
    assert printed_by(code) == "['bq://p.d.t', 'sample:digits', 'gs://b/x', 'gs://b/q.sql']\n"
