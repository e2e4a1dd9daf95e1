"""The files of a version are compared with its hashes wherever they are read, and the same model is one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import DirectoryRegistry, RegisteredVersion
from gpu_pipelines.registry.registered import DamagedVersionError, Promotion


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "tokenizer").mkdir(parents=True)
    for name in ("config.json", "tokenizer/vocabulary.json", "evaluation.json", "MODEL_CARD.md", "examples.json"):
        (directory / name).write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    return directory


@pytest.fixture
def registry(tmp_path: Path) -> DirectoryRegistry:
    return DirectoryRegistry(tmp_path / "registry")


def add(registry: DirectoryRegistry, model: Path, seen: int | None = None) -> RegisteredVersion:
    return registry.add("digits", model, {"passed": True}, Promotion(True, seen))


def overwrite(version: RegisteredVersion, name: str = "model.safetensors") -> None:
    with (Path(version.place) / name).open("r+b") as file:
        file.seek(100)
        file.write(b"\x00" * 60)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.safetensors", "model.safetensors is not as it was uploaded"),
        ("tokenizer/vocabulary.json", "tokenizer/vocabulary.json is missing"),
        ("adapter_config.json", "adapter_config.json was not uploaded with it"),
    ],
)
def test_a_file_that_was_changed_lost_or_added_is_named_with_the_version(
    registry: DirectoryRegistry, model: Path, name: str, what: str
) -> None:
    version = add(registry, model)
    digest = version.digest
    file = Path(version.place) / name
    if not file.exists():
        file.write_text("{}")
    elif name.startswith("tokenizer"):
        file.unlink()
    else:
        overwrite(version)
    damaged = registry.version("digits", "champion")
    for read in (lambda: damaged.path, damaged.require_undamaged, lambda: registry.set_alias("digits", "live", 1)):
        with pytest.raises(DamagedVersionError) as caught:
            read()
        assert f"Version 1 of 'digits' in {version.place} is damaged: {what}." in str(caught.value)
        assert "gpu-pipelines models alias digits champion NUMBER" in caught.value.remedy
    assert damaged.digest != digest, "a cache that goes by the digest holds nothing for the damaged files"
    assert registry.aliases("digits") == {"challenger": 1, "champion": 1}


def test_files_of_a_file_browser_are_no_damage(registry: DirectoryRegistry, model: Path) -> None:
    version = add(registry, model)
    (Path(version.place) / ".DS_Store").write_text("")
    assert registry.version("digits", "1").path == Path(version.place)


def test_the_same_model_evaluated_again_is_the_version_that_is_there(registry: DirectoryRegistry, model: Path) -> None:
    first = add(registry, model)
    assert first.added
    for name in ("evaluation.json", "MODEL_CARD.md", "examples.json"):
        (model / name).write_text('{"on": "other rows"}')
    second = add(registry, model, seen=1)
    assert (second.number, second.added) == (1, False)
    assert (Path(second.place) / "evaluation.json").read_text() == "{}", "what a version says does not change"
    (model / "config.json").write_text('{"hidden_size": 8}')
    third = add(registry, model, seen=1)
    assert (third.number, third.added) == (2, True)


def test_a_file_of_a_format_of_ones_own_is_the_model_whatever_its_name(
    registry: DirectoryRegistry, tmp_path: Path
) -> None:
    model = tmp_path / "own"
    model.mkdir()
    for number in (1, 2):
        (model / "examples.json").write_text(str(number))
        assert add(registry, model).number == number


def test_a_damaged_version_is_not_taken_for_the_same_model(registry: DirectoryRegistry, model: Path) -> None:
    overwrite(add(registry, model))
    again = add(registry, model, seen=1)
    assert (again.number, again.added) == (2, True)
    assert again.path == Path(again.place)


def test_a_version_that_is_gone_is_an_error_of_its_own(registry: DirectoryRegistry, model: Path) -> None:
    version = add(registry, model)
    (Path(version.place) / "version.json").unlink()
    with pytest.raises(UserError, match=r"no version\.json"):
        registry.version("digits", "1")


def test_a_version_that_was_removed_in_part_stands_in_no_other_ones_way(
    registry: DirectoryRegistry, model: Path
) -> None:
    first = add(registry, model)
    (model / "config.json").write_text('{"hidden_size": 8}')
    second = add(registry, model, seen=1)
    (Path(first.place) / "version.json").unlink()
    assert registry.champion("digits") == second
    assert registry.version("digits", "2") == second
    assert (add(registry, model, seen=2).number, add(registry, model, seen=2).added) == (2, False)
    (model / "config.json").write_text('{"hidden_size": 16}')
    assert add(registry, model, seen=2).number == 3


def test_a_version_whose_record_is_damaged_keeps_its_aliases_and_is_used_for_nothing(
    registry: DirectoryRegistry, model: Path
) -> None:
    (Path(add(registry, model).place) / "version.json").write_text("{")
    champion = registry.champion("digits")
    assert champion is not None
    with pytest.raises(DamagedVersionError, match=r"version\.json cannot be read\.\n.*models alias digits champion"):
        _ = champion.path
    with pytest.raises(UserError, match=r"version\.json cannot be read"):
        registry.set_alias("digits", "live", 1)
    assert (add(registry, model, seen=1).number, registry.aliases("digits")["champion"]) == (2, 2)
    assert [(each.number, each.is_damaged) for each in registry.versions("digits")] == [(1, True), (2, False)]


def test_a_file_that_cannot_be_read_is_named(registry: DirectoryRegistry, model: Path) -> None:
    """As one of another user's, or on a file system that is gone; whoever runs the tests may read all files."""
    version = Path(add(registry, model).place) / "version.json"
    version.unlink()
    version.mkdir()
    with pytest.raises(UserError, match=r"digits/versions/1/version\.json cannot be read: Is a directory\."):
        registry.champion("digits")
