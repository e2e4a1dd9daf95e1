"""The command line of `gcloud ai-platform jobs submit training`: its flags, and their precedence over the file.

Source: surface/ai_platform/jobs/submit/training.py of the Google Cloud CLI 528, with --network and --tpu-tf-version of
its beta.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.migration.job_fields import JOB, ListOf, Message
from gpu_pipelines.migration.job_file import value_of
from gpu_pipelines.yaml_output import is_utf8

#: Flags that set one field below trainingInput.
_FIELDS = {
    "--scale-tier": "scaleTier",
    "--region": "region",
    "--module-name": "pythonModule",
    "--runtime-version": "runtimeVersion",
    "--python-version": "pythonVersion",
    "--job-dir": "jobDir",
    "--service-account": "serviceAccount",
    "--network": "network",
    "--use-chief-in-tf-config": "useChiefInTfConfig",
    "--master-machine-type": "masterType",
    "--master-image-uri": "masterConfig.imageUri",
    "--worker-machine-type": "workerType",
    "--worker-count": "workerCount",
    "--worker-image-uri": "workerConfig.imageUri",
    "--parameter-server-machine-type": "parameterServerType",
    "--parameter-server-count": "parameterServerCount",
    "--parameter-server-image-uri": "parameterServerConfig.imageUri",
    "--tpu-tf-version": "workerConfig.tpuTfVersion",
}
_ACCELERATORS = {
    "--master-accelerator": "masterConfig",
    "--worker-accelerator": "workerConfig",
    "--parameter-server-accelerator": "parameterServerConfig",
}
_OTHERS = ("--config", "--staging-bucket", "--package-path", "--packages", "--labels", "--project")
_KEY_PARTS = ("--kms-key", "--kms-keyring", "--kms-location", "--kms-project")
_SWITCHES = ("--enable-web-access", "--async", "--stream-logs", "--quiet", "-q")
#: Flags of every gcloud command that say how it runs, not what the job is.
_PASSED_OVER = (
    "--account",
    "--billing-project",
    "--configuration",
    "--format",
    "--impersonate-service-account",
    "--verbosity",
)
#: The words that may precede the flags if a whole command is given.
_COMMAND = re.compile(r"gcloud( alpha| beta)? (ai-platform|ml-engine) jobs submit training( |$)")
_FILE_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class GcloudCommand:
    """An old command line.

    Attributes:
        job: the fields of `Job` that it sets.
        file: its file; None for none.
        staging_bucket, package_path, packages: the places of the program on this machine.
        key_parts: parts of the name of the key, by flag; a flag may also give the whole name.
        project: id of the project; None if none was given.
        stream_logs: whether the command waits and shows the log.
    """

    job: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    staging_bucket: str | None = None
    package_path: str | None = None
    packages: tuple[str, ...] = ()
    key_parts: Mapping[str, str] = field(default_factory=dict)
    project: str | None = None
    stream_logs: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"The gcloud flags cannot be read: {message}.")


def parse_command(words: Sequence[str], user_args: Sequence[str] | None) -> GcloudCommand:
    """Reads an old command line.

    Args:
        words: a file, the job's name and flags, in any order; the words `gcloud ai-platform jobs submit training` may
            stand before them.
        user_args: the application's arguments after `--`; None if there was no `--`.

    Raises:
        UserError: lists what gcloud would have refused.
    """
    if broken := [word for word in (*words, *(user_args or ())) if not is_utf8(word)]:
        raise UserError(f"{broken[0][:80]!a} is not UTF-8; a config has to be UTF-8.")
    rest = list(words)
    match = _COMMAND.match(" ".join(rest))
    if match:
        rest = rest[len(match[0].split()) :]
    elif rest[:1] == ["gcloud"]:
        raise UserError(
            "The command does not begin with gcloud ai-platform jobs submit training.",
            "A job of gcloud ai custom-jobs is on Vertex AI already: gpu-pipelines job submit takes its --config.",
        )
    given, left = _parser().parse_known_args(rest)
    values = {name: value for name, value in vars(given).items() if value is not None and value is not False}
    problems = [f"gcloud has no flag {word[:60]}. {_hint(word)}".rstrip() for word in left if word.startswith("-")]
    file, name = _file_and_name([word for word in left if not word.startswith("-")], values, problems)
    document = _document(values, name, problems)
    if user_args is not None:
        document["trainingInput"]["args"] = list(user_args)
    job = value_of(JOB, document, "", problems) or {}
    if problems:
        raise UserError.of_all(problems)
    return GcloudCommand(
        job=job,
        file=file,
        staging_bucket=values.get("--staging-bucket"),
        package_path=values.get("--package-path"),
        packages=tuple(part for part in values.get("--packages", "").split(",") if part),
        key_parts={flag: values[flag] for flag in _KEY_PARTS if flag in values},
        project=values.get("--project"),
        stream_logs="--stream-logs" in values,
    )


def merged(file: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The job of a file, changed by flags field by field; lists and labels are replaced as a whole."""
    return _merged(JOB, file, flags)


def _merged(kind: Message, below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(dict(below))
    for name, value in above.items():
        part = kind.fields[name]
        if isinstance(part, Message) and not isinstance(part, ListOf):
            found[name] = _merged(part, found.get(name) or {}, value)
        else:
            found[name] = value
    return found


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False, prog="gcloud ai-platform jobs submit training")
    for flag in (*_FIELDS, *_ACCELERATORS, *_OTHERS, *_KEY_PARTS, *_PASSED_OVER):
        parser.add_argument(flag, dest=flag)
    for flag in _SWITCHES:
        parser.add_argument(flag, dest=flag, action="store_true")
    return parser


def _hint(word: str) -> str:
    flags = (*_FIELDS, *_ACCELERATORS, *_OTHERS, *_KEY_PARTS, *_SWITCHES)
    return nearest(word.partition("=")[0], flags, otherwise="The application's own flags come after --.")


def _file_and_name(words: list[str], values: Mapping[str, Any], problems: list[str]) -> tuple[Path | None, str | None]:
    files = [word for word in words if _is_file(word)]
    names = [word for word in words if word not in files]
    if "--config" in values:
        files.append(values["--config"])
    if len(files) > 1:
        problems.append(
            f"There are {len(files)} files, {' and '.join(file[:80] for file in files[:3])}; a job has one."
        )
    if len(names) > 1:
        problems.append(f"A job has one name, not {', '.join(name[:60] for name in names[:4])}.")
    return (Path(files[0]) if files else None), (names[0] if names else None)


def _is_file(word: str) -> bool:
    """Whether a word is a file, a device or a pipe rather than the name of a job, which has no slashes."""
    # os.path says of an impossible file name that it is not a file; pathlib raises.
    return word.lower().endswith(_FILE_SUFFIXES) or "/" in word or os.path.isfile(word)  # noqa: PTH113


def _document(values: Mapping[str, Any], name: str | None, problems: list[str]) -> dict[str, Any]:
    """The job described by the flags, in the form of a file."""
    training: dict[str, Any] = {}
    for flag, path in _FIELDS.items():
        if flag in values:
            _set(training, path, values[flag])
    for flag, config in _ACCELERATORS.items():
        if flag in values:
            _set(training, f"{config}.acceleratorConfig", _pairs(flag, values[flag], ("count", "type"), problems))
    if "--enable-web-access" in values:
        training["enableWebAccess"] = "true"
    document: dict[str, Any] = {"trainingInput": training}
    if name:
        document["jobId"] = name
    if "--labels" in values:
        document["labels"] = _pairs("--labels", values["--labels"], None, problems)
    return document


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
    document[name] = value


def _pairs(flag: str, text: str, known: Sequence[str] | None, problems: list[str]) -> dict[str, str]:
    """Parses `a=1,b=2` as gcloud does."""
    found = {}
    for part in filter(None, text.split(",")):
        key, sign, value = part.partition("=")
        if not sign or (known is not None and key not in known):
            form = ",".join(f"{name}={name.upper()}" for name in known or ("key", "value"))
            problems.append(f"{flag} has {part[:60]!r}; it is written {form}.")
        else:
            found[key] = value
    return found
