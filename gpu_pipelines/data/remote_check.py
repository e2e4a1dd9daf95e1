"""What is wrong with data in object storage, looked at in seconds from where a run is sent that reads it elsewhere."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_pipelines.artifacts.remote_files import NoSuchStorageError, folders_in, is_remote
from gpu_pipelines.data.sources.listing import is_pattern
from gpu_pipelines.data.sources.names import is_bigquery, is_hub_id
from gpu_pipelines.errors import AccessDeniedError, UnavailableError, UserError
from gpu_pipelines.tasks.tasks import task_named

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings

#: What a look at one source may take; the first step of the run has no such limit.
SECONDS = 10.0


@dataclass
class Look:
    """What a look at the sources of a run has found.

    Attributes:
        problems: what is wrong with them.
        unseen: a sentence for each that could not be looked at from here, with the reason.
    """

    problems: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def look_at_sources(settings: PrepareSettings, seconds: float = SECONDS) -> Look:
    """Looks at the sources that are in object storage: their files, their columns, the classes of small tables.

    The account that asks need not be allowed to read what the run may read: that is no fault of the request. Neither is
    a storage that does not answer in time.

    Args:
        settings: source and test source, the task, the columns.
        seconds: that the look at each of the two may take.
    """
    look = Look()
    for each in (settings, *([settings.of_test_source()] if settings.test_source else [])):
        if is_remote(each.source) and not is_bigquery(each.source) and not is_hub_id(each.source):
            found = _looked_at(each, seconds)
            look.problems += found.problems
            look.unseen += found.unseen
    return look


def _looked_at(settings: PrepareSettings, seconds: float) -> Look:
    # Clients of storages try again for minutes. A thread that is waiting for one must not keep the command.
    look = Look(unseen=[f"{settings.source} could not be looked at within {seconds:g} s."])
    finished = Look()
    thread = threading.Thread(target=_look, args=(settings, finished), daemon=True)
    thread.start()
    thread.join(seconds)
    return look if thread.is_alive() else finished


def _look(settings: PrepareSettings, look: Look) -> None:
    try:
        # Whoever only compiles and sends pipelines need not have the packages that read data.
        from gpu_pipelines.data.source_check import require_usable_source
        from gpu_pipelines.data.sources.source_files import find_source

        if not _has_class_folders(settings):
            require_usable_source(find_source(settings), settings)
    except (AccessDeniedError, NoSuchStorageError, UnavailableError) as error:
        look.unseen.append(f"{error.problem} {error.remedy}".strip())
    except UserError as error:
        look.problems.append(f"{error.problem} {error.remedy}".strip())
    except ImportError as error:
        look.unseen.append(f"{settings.source} cannot be read here: the package {error.name} is not installed.")
    except Exception as error:  # Credentials and networks of several packages: the first step meets them or does not.
        look.unseen.append(f"{settings.source} cannot be read from here: {type(error).__name__}: {str(error)[:200]}.")


def _has_class_folders(settings: PrepareSettings) -> bool:
    """Whether a source is images in two folders at least: listing all their files can take minutes."""
    if (
        "images" not in task_named(settings.task).formats
        or settings.source_format != "auto"
        or is_pattern(settings.source)
    ):
        return False
    return len(folders_in(settings.source)) > 1
