"""The directory registry: several writers, and writers that are killed. What holds of all is in another file."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command_line import command

from gpu_pipelines.artifacts.documents import sha256_of_tree, write_document
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry, model_name_for, open_registry, registry_problems
from gpu_pipelines.registry.registered import Promotion

#: Runs a command that has a small disk of its own at a folder.
SMALL_DISK = 'mount -t tmpfs -o size=2m none "$0" && exec "$@"'
#: Exit status of a process that was not killed.
ENDED = 33


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(os.urandom(20_000))
    (directory / "tokenizer" / "vocabulary.json").write_text("{}")
    return directory


def add(registry: DirectoryRegistry, model: Path, promote: bool = True, seen: int | None = None) -> int:
    """Adds what is in the directory with other weights than before."""
    (model / "model.safetensors").write_bytes(os.urandom(20_000))
    return add_again(registry, model, promote, seen)


def add_again(registry: DirectoryRegistry, model: Path, promote: bool = True, seen: int | None = None) -> int:
    return registry.add("digits", model, {"passed": promote}, Promotion(promote, seen)).number


def _add_five(root: Path, model: Path) -> None:
    registry = DirectoryRegistry(root)
    own = shutil.copytree(model, model.with_name(f"model-{os.getpid()}"))
    for _ in range(5):
        add(registry, own)


def test_who_waits_for_another_writer_says_so(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    add(registry, model)
    assert capsys.readouterr().err == ""
    with (tmp_path / "registry/digits/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=registry.set_alias, args=("digits", "live", 1), daemon=True)
        waiting.start()
        until, told = time.monotonic() + 20, ""
        while "waiting for another process, which writes digits in" not in told:
            assert time.monotonic() < until
            told += capsys.readouterr().err
            time.sleep(0.02)
        assert waiting.is_alive()
    waiting.join(20)
    assert registry.aliases("digits")["live"] == 1


def test_writers_at_the_same_time_each_add_all_their_versions(tmp_path: Path, model: Path) -> None:
    root = tmp_path / "registry"
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=_add_five, args=(root, model)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    registry = DirectoryRegistry(root)
    assert [version.number for version in registry.versions("digits")] == list(range(1, 16))
    assert registry.aliases("digits")["challenger"] == 15


def _add_and_die(root: Path, model: Path, calls: int) -> None:
    """Adds a version and kills itself at the given call of one of the steps that change the registry."""
    import gpu_pipelines.registry.directory as directory

    count = 0

    def counted(function: object) -> object:
        def call(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)  # type: ignore[operator]

        return call

    shutil.copyfile = counted(shutil.copyfile)  # type: ignore[assignment]
    directory.write_document = counted(directory.write_document)  # type: ignore[assignment]
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    add_again(DirectoryRegistry(root), model, seen=1)
    os._exit(ENDED)


def test_a_writer_killed_at_any_stage_leaves_whole_versions_only(tmp_path: Path, model: Path) -> None:
    # Forked by a process that has no threads: the workers of pytest have some.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gpu_pipelines.registry.directory"])
    for calls in range(1, 20):
        root = tmp_path / f"registry-{calls}"
        registry = DirectoryRegistry(root)
        add(registry, model)
        (model / "model.safetensors").write_bytes(os.urandom(20_000))
        process = context.Process(target=_add_and_die, args=(root, model, calls))
        process.start()
        process.join(60)
        if process.exitcode == ENDED:
            break
        assert process.exitcode == -signal.SIGKILL
        for version in registry.versions("digits"):
            written = sha256_of_tree(version.path, leave_out=("version.json",))
            assert version.info["files"] == written, f"killed at {calls}"
        assert registry.aliases("digits")["champion"] == 1
        started = time.monotonic()
        assert add_again(registry, model, seen=1) == 2, "the next upload of the same model takes up what is there"
        assert time.monotonic() - started < 10
        assert registry.aliases("digits") == {"champion": 2, "challenger": 2}
        assert [version.number for version in registry.versions("digits")] == [1, 2]
        assert not list((root / "digits").glob(".incoming-*"))
    assert calls == 8, "two files copied, two documents written and put in place, one rename, and the end"


def test_a_version_that_fails_its_check_is_not_added(tmp_path: Path, model: Path) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    add(registry, model)
    (model / "model.safetensors").write_bytes(os.urandom(20_000))
    seen: list[set[str]] = []

    def check(place: str) -> None:
        seen.append({path.name for path in Path(place).rglob("*") if path.is_file()})
        raise UserError("it predicts something else")

    with pytest.raises(UserError, match="something else"):
        registry.add("digits", model, {"passed": True}, Promotion(True, 1), check=check)
    assert seen == [{"model.safetensors", "vocabulary.json", "version.json"}]
    assert [version.number for version in registry.versions("digits")] == [1]
    assert registry.aliases("digits") == {"champion": 1, "challenger": 1}
    assert not list((tmp_path / "registry" / "digits").glob(".incoming-*"))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "from gpu_pipelines.registry import DirectoryRegistry; from gpu_pipelines.registry.registered import *\n"
            "DirectoryRegistry(disk).add('digits', disk.parent / 'model', {}, Promotion(False, None))",
            "The model 'digits' could not be written to {disk}: [Errno 28] No space left on device: '{model}'",
        ),
        (
            "from gpu_pipelines.artifacts.documents import replace_file\n"
            "replace_file(disk / 'run.json', bytes(4_000_000))",
            "OSError: [Errno 28] No space left on device: '{disk}/run.json'",
        ),
    ],
    ids=["a version", "a document"],
)
def test_a_full_disk_is_said_with_one_place(code: str, told: str, tmp_path: Path, model: Path) -> None:
    (tmp_path / "disk").mkdir()
    (model / "model.safetensors").write_bytes(os.urandom(4_000_000))
    inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, str(tmp_path / "disk"))
    program = f"import sys; from pathlib import Path; disk = Path(sys.argv[1])\n{code}"
    command = [*inside, sys.executable, "-c", program, str(tmp_path / "disk")]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.format(disk=tmp_path / "disk", model=model / "model.safetensors") in failed.stderr
    assert "[(" not in failed.stderr


def test_a_registry_that_cannot_be_written_is_said_before_anything_is_copied(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"(?s)file/registry cannot be written: Not a directory.*registry="):
        add(DirectoryRegistry(tmp_path / "file" / "registry"), model)


def test_a_look_whether_it_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    DirectoryRegistry(tmp_path / "models" / "registry").require_writable()
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_vanishes_while_it_is_uploaded_leaves_no_version(tmp_path: Path, model: Path) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    (model / "gone.bin").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="No alias was moved"):
        add(registry, model)
    assert registry.versions("digits") == []
    assert registry.names() == []


def test_files_behind_a_link_to_a_folder_are_part_of_the_model(tmp_path: Path, model: Path) -> None:
    (model / "base").symlink_to(model / "tokenizer")
    registry = DirectoryRegistry(tmp_path / "registry")
    version = registry.version("digits", add(registry, model))
    version.require_undamaged()
    assert "base/vocabulary.json" in version.info["files"]


def test_an_upload_that_fails_at_its_end_does_not_say_that_there_is_no_version(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_write_aliases", lambda *_: tmp_path.mkdir())
        with pytest.raises(UserError, match="No alias was moved"):
            add(registry, model)
    assert (len(registry.versions("digits")), registry.aliases("digits")) == (1, {})
    assert add_again(registry, model) == 1


@pytest.mark.parametrize("name", ["../escape", "UPPER", "a/b", "-dash", "x" * 64, "tab\t"])
def test_names_that_are_no_names_are_refused(name: str) -> None:
    assert len(registry_problems("./registry", name)) == 1


def test_a_registry_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="not supported"):
        open_registry("s3://bucket/models")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("sample:digits", "digits"),
        ("data/Flower Photos/", "flower-photos"),
        ("/data/flower_photos.csv", "flower-photos"),
        ("~/__", "model"),
        ("bq://my-project.data.Flower_Photos", "flower-photos"),
        ("hf://owner/flower_photos@main?config=full&split=all", "flower-photos"),
        ("gs://bucket/queries/flower-photos.sql", "flower-photos"),
    ],
)
def test_a_model_without_a_name_is_named_after_its_data(source: str, name: str) -> None:
    assert model_name_for(source) == name
    assert registry_problems("./registry", model_name_for(source)) == []


def test_a_number_is_always_that_of_a_version(tmp_path: Path) -> None:
    """Registries of before may have an alias that is one."""
    registry = DirectoryRegistry(tmp_path / "registry")
    (tmp_path / "model").mkdir()
    for number in range(2):
        (tmp_path / "model/weights").write_text(str(number))
        registry.add("digits", tmp_path / "model", {}, Promotion(False, None))
    aliases = tmp_path / "registry/digits/model.json"
    write_document(aliases, {"name": "digits", "aliases": {"2": 1, "champion": 2}})
    assert registry.version("digits", "2").number == 2
    champion = registry.champion("digits")
    assert champion is not None
    assert champion.number == 2


def test_a_damaged_model_hides_no_other(tmp_path: Path, model: Path) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    for name in ("birds", "cats", "digits"):
        registry.add(name, model, {}, Promotion(True, None))
    (registry.root / "birds/model.json").write_text('{"format_version": 1}')
    (model / "model.safetensors").write_bytes(b"another")
    registry.add("cats", model, {}, Promotion(False, 1))
    (registry.root / "cats/versions/1/version.json").unlink()
    listed = command("models", "list", "--registry", str(registry.root), "--json", cwd=tmp_path)
    cats, digits = json.loads(listed.out)
    assert (cats["name"], cats["versions"], cats["damaged"]) == ("cats", 2, [1])
    assert (digits["name"], digits["versions"]) == ("digits", 1)
    assert "damaged" not in digits
    told = json.loads(command("models", "show", "cats", "--registry", str(registry.root), "--json", cwd=tmp_path).out)
    assert ["it has no version.json" in each.get("damaged", "") for each in told["versions"]] == [False, True]
    assert f"warning: the model 'birds' is not listed: {registry.root}/birds/model.json is damaged" in listed.err
    assert "warning: version 1 of 'cats': " in listed.err
    assert "it has no version.json" in listed.err
    versions = command("models", "show", "cats", "--registry", str(registry.root), cwd=tmp_path)
    assert versions.err == next(f"{line}\n" for line in listed.err.splitlines() if "'cats'" in line)
    assert [line.split()[0] for line in versions.out.splitlines() if " damaged" in line] == ["1"]
    shown = registry._repr_html_()
    assert shown.count(">damaged<") == 1
    assert shown.index("birds") < shown.index("cats") < shown.index("digits")


def test_a_file_where_the_versions_of_a_model_would_be_is_no_model(tmp_path: Path, model: Path) -> None:
    root = tmp_path / "registry"
    add(DirectoryRegistry(root), model)
    for name in ("notes", "leftover"):
        (root / name).mkdir()
    (root / "notes" / "versions").write_text("a file")
    (root / "leftover" / "versions").mkdir()
    (root / "leftover" / "versions" / ".DS_Store").write_bytes(b"")
    assert DirectoryRegistry(root).names() == ["digits"]
    missing = command("models", "show", "notes", "--registry", str(root), cwd=tmp_path)
    assert (missing.status, "Traceback" in missing.err) == (2, False), missing.err


def test_a_version_of_which_little_was_recorded_is_shown(tmp_path: Path, model: Path) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    registry.add("digits", model, {}, Promotion(True, None))
    record = registry.root / "digits/versions/1/version.json"
    record.write_text('{"format_version": 1}')
    shown = command("models", "show", "digits", "--registry", str(registry.root), cwd=tmp_path)
    assert shown.status == 0, shown.err
    assert "champion" in shown.out


def test_the_alias_of_a_deleted_version_does_not_come_to_name_a_new_model(tmp_path: Path, model: Path) -> None:
    registry = DirectoryRegistry(tmp_path / "registry")
    add(registry, model)
    assert add(registry, model, promote=False) == 2
    registry.set_alias("digits", "release", 2)
    shutil.rmtree(tmp_path / "registry/digits/versions/2")
    assert add(registry, model, promote=False) == 3
    with pytest.raises(UserError, match=r"Version 2 of the model 'digits' .* is not there, but release names it"):
        registry.version("digits", "release")
