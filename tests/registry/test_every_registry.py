"""What holds of every registry that takes files without a service of Google's: versions, aliases, damage."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, read_remote
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import RegisteredVersion, Registry, mlflow_registry, open_registry
from gpu_pipelines.registry.registered import DamagedVersionError, Promotion


@pytest.fixture(scope="module", params=["directory", "mlflow", "mlflow file"])
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "mlflow":
        return str(request.getfixturevalue("mlflow"))
    folder = tmp_path_factory.mktemp("registry")
    return str(folder) if request.param == "directory" else f"mlflow:sqlite:///{folder}/models.db"


@pytest.fixture
def registry(uri: str) -> Registry:
    return open_registry(uri)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model of each test's own in the registry of all."""
    return request.node.originalname.removeprefix("test_")[:60]  # type: ignore[no-any-return]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "tokenizer" / "vocabulary.json").write_text("{}")
    (directory / "empty.txt").write_text("")
    return directory


def add(registry: Registry, name: str, model: Path, promote: bool = True, seen: int | None = None) -> RegisteredVersion:
    """Adds what is in the directory with other weights than before."""
    (model / "model.safetensors").write_bytes(os.urandom(20_000))
    return add_again(registry, name, model, promote, seen)


def add_again(
    registry: Registry, name: str, model: Path, promote: bool = True, seen: int | None = None
) -> RegisteredVersion:
    return registry.add(name, model, {"passed": promote, "metrics": {"accuracy": 0.5}}, Promotion(promote, seen))


def write(version: RegisteredVersion, name: str, content: bytes) -> None:
    if is_remote(version.place):
        RemoteFolder(version.place).write(name, content)
    else:
        (Path(version.place) / name).write_bytes(content)


def test_a_version_is_named_by_a_number_or_its_text(registry: Registry, name: str, model: Path) -> None:
    first = add(registry, name, model, promote=False)
    assert registry.version(name, first.number) == registry.version(name, "1") == first
    with pytest.raises(UserError, match="no version or alias '9'"):
        registry.version(name, 9)
    of_a_form: Any = "1"
    registry.set_alias(name, "tried", of_a_form)
    assert registry.aliases(name) == {"challenger": 1, "tried": 1}
    assert registry.version(name, "tried").aliases == ("challenger", "tried")


def test_versions_hold_a_copy_and_aliases_name_the_newest_and_the_best(
    registry: Registry, name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.champion(name) is None
    first = add(registry, name, model)
    weights = (model / "model.safetensors").read_bytes()
    second = add(registry, name, model, promote=False, seen=1)
    assert [first.number, second.number] == [1, 2]
    assert (first.added, first.aliases, second.aliases) == (True, ("challenger", "champion"), ("challenger",))
    assert registry.aliases(name) == {"champion": 1, "challenger": 2}
    champion = registry.version(name, "champion")
    assert (champion.path / "model.safetensors").read_bytes() == weights
    assert (champion.path / "tokenizer" / "vocabulary.json").read_text() == "{}"
    assert set(champion.info["files"]) == {"model.safetensors", "tokenizer/vocabulary.json", "empty.txt"}
    assert champion.info["metrics"] == {"accuracy": 0.5}
    assert not champion.has_evaluation
    assert name in registry.names()
    # The champion that the third was compared with was another.
    add(registry, name, model, seen=None)
    assert registry.aliases(name) == {"champion": 1, "challenger": 3}
    add(registry, name, model, seen=1)
    assert registry.aliases(name) == {"champion": 4, "challenger": 4}
    # Of thousands of versions the records are read at a time, here in pairs.
    pair, read = threading.Barrier(2, timeout=20), mlflow_registry.record_in
    monkeypatch.setattr(mlflow_registry, "record_in", lambda place: (pair.wait(), read(place))[1])
    assert [version.number for version in registry.versions(name)] == [1, 2, 3, 4]


@pytest.mark.slow_but_for("directory", "mlflow")
def test_metrics_of_a_users_own_have_any_name(registry: Registry, name: str, model: Path) -> None:
    metrics = {"recall@5": 0.5, "/of the//best/": 1.0, "n" * 300: 2.0}
    added = registry.add(name, model, {"passed": True, "metrics": metrics}, Promotion(True, None))
    assert (added.number, added.info["metrics"]) == (1, metrics)


@pytest.mark.slow_but_for("directory", "mlflow")
def test_the_same_model_is_one_version(registry: Registry, name: str, model: Path) -> None:
    add(registry, name, model)
    assert add(registry, name, model, promote=False, seen=1).number == 2
    again = add_again(registry, name, model, seen=1)
    assert (again.number, again.added, again.aliases) == (2, False, ("challenger", "champion"))
    for source in ("of the same rows", "of them again", "of them again"):
        registry.version(name, 2).note_source(source)
    noted = registry.version(name, 2)
    assert noted.sources == {"of the same rows", "of them again"}
    assert (noted.is_damaged, noted.info["metrics"]) == (False, {"accuracy": 0.5})
    assert [version.number for version in registry.versions(name)] == [1, 2]


@pytest.mark.slow_but_for("directory", "mlflow")
def test_a_model_that_cannot_be_read_is_named(registry: Registry, name: str, model: Path) -> None:
    (model / "weights.bin").symlink_to("/proc/self/mem")  # whoever runs the tests may read all other files
    with pytest.raises(UserError, match=r"The model cannot be read: .*Input/output error"):
        add(registry, name, model)
    assert registry.versions(name) == []


@pytest.mark.slow_but_for("directory", "mlflow")
def test_an_alias_is_no_number_and_no_path(registry: Registry, name: str, model: Path) -> None:
    add(registry, name, model)
    for alias in ("4", "", "../x", "Bad alias", "champion@x", "a", "release-", "a" * 129, None):
        with pytest.raises(UserError, match=rf"{alias!r} is not a valid alias\.\s*Give 2 to 128 letters"):
            registry.set_alias(name, alias, 1)  # type: ignore[arg-type]
    assert registry.aliases(name) == {"champion": 1, "challenger": 1}


def test_an_alias_is_moved_by_hand(registry: Registry, name: str, model: Path) -> None:
    add(registry, name, model)
    add(registry, name, model, promote=False, seen=1)
    registry.set_alias(name, "champion", 2)
    champion = registry.champion(name)
    assert champion is not None
    assert champion.number == 2
    with pytest.raises(UserError, match=r"no version or alias '7'.\s*It has the aliases challenger \(version 2\)"):
        registry.set_alias(name, "champion", 7)
    with pytest.raises(UserError, match="no model 'absent'"):
        registry.version("absent", "champion")
    assert registry.versions("absent") == []


@pytest.mark.slow_but_for("directory", "mlflow")
def test_what_fails_its_check_is_no_version(registry: Registry, name: str, model: Path) -> None:
    add(registry, name, model)
    (model / "model.safetensors").write_bytes(b"other")
    seen: list[str] = []

    def check(place: str) -> None:
        seen.append(place)
        folder = RemoteFolder(place if is_remote(place) else f"file://{place}")
        assert folder.names() == ["empty.txt", "model.safetensors", "tokenizer/vocabulary.json", "version.json"]
        raise UserError("it predicts something else")

    with pytest.raises(UserError, match="something else"):
        registry.add(name, model, {"passed": True}, Promotion(True, 1), check=check)
    assert [version.number for version in registry.versions(name)] == [1]
    assert registry.aliases(name) == {"champion": 1, "challenger": 1}
    (place,) = seen
    assert RemoteFolder(place).names() == [] if is_remote(place) else not Path(place).exists()


@pytest.mark.parametrize(
    "record",
    [
        b"{",
        pytest.param(b"[]", marks=pytest.mark.slow),
        pytest.param(b"\xff", marks=pytest.mark.slow),
        b'{"format_version": 1, "files": {',
    ],
)
def test_a_champion_whose_record_is_damaged_stays_and_is_used_for_nothing(
    registry: Registry, name: str, model: Path, record: bytes
) -> None:
    own = f"{name}-{record.hex()[:8]}"
    write(add(registry, own, model), "version.json", record)
    champion = registry.champion(own)
    assert champion is not None
    for read in (lambda: champion.path, champion.require_undamaged, lambda: registry.set_alias(own, "live", 1)):
        with pytest.raises(DamagedVersionError, match=r"is damaged: version\.json cannot be read"):
            read()
    assert add(registry, own, model, promote=False, seen=1).aliases == ("challenger",)
    assert registry.aliases(own)["champion"] == 1


def test_a_champion_of_a_newer_version_of_this_program_stays_and_is_used_for_nothing(
    registry: Registry, name: str, model: Path
) -> None:
    version = add(registry, name, model)
    newer = json.dumps({"format_version": 2, **version.info}).encode()
    write(version, "version.json", newer)
    champion = registry.champion(name)
    assert champion is not None
    for read in (lambda: champion.path, champion.require_undamaged, lambda: registry.set_alias(name, "live", 1)):
        with pytest.raises(DamagedVersionError) as caught:
            read()
        assert "version.json has format_version 2; this program reads up to 1." in caught.value.problem
        assert caught.value.remedy == "Use the version of gpu-pipelines that wrote it, or a newer one."
    assert add(registry, name, model, promote=False, seen=1).aliases == ("challenger",)
    assert registry.aliases(name)["champion"] == 1
    file = f"{version.place}/version.json"
    assert (read_remote(file) if is_remote(file) else Path(file).read_bytes()) == newer


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("model.safetensors", "model.safetensors is not as it was uploaded"),
        ("adapter.json", "adapter.json was not uploaded with it"),
    ],
)
def test_a_damaged_file_is_named(registry: Registry, name: str, model: Path, file: str, what: str) -> None:
    own = f"{name}-{file[:5]}"
    version = add(registry, own, model)
    write(version, file, bytes(20_000))
    damaged = registry.version(own, "champion")
    for read in (lambda: damaged.path, damaged.require_undamaged, lambda: registry.set_alias(own, "live", 1)):
        with pytest.raises(DamagedVersionError) as caught:
            read()
        assert f"Version 1 of '{own}' in {version.place} is damaged: {what}." in str(caught.value)
    assert registry.aliases(own) == {"champion": 1, "challenger": 1}
    if file in version.info["files"]:
        write(version, file, (model / file).read_bytes())
        assert (registry.version(own, "1").path / file).read_bytes() == (model / file).read_bytes()
    else:
        again = add_again(registry, own, model, seen=1)
        assert (again.number, again.added) == (2, True), "a damaged version is not taken for the same model"
