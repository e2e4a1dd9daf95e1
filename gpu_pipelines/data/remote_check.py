"""What is wrong with data in object storage, looked at in seconds from where a run is sent that reads it elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gpu_pipelines.artifacts.remote_files import NoSuchStorageError
from gpu_pipelines.data.sources.sources import source_of
from gpu_pipelines.errors import AccessDeniedError, UnavailableError, UserError

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

    def add(self, other: Look) -> None:
        """Takes in what another look has found."""
        self.problems += other.problems
        self.unseen += other.unseen


def look_at_sources(settings: PrepareSettings, seconds: float = SECONDS) -> Look:
    """Looks at sources that can be seen from here, as those in object storage: files, columns, classes of small tables.

    The account that asks need not be allowed to read what the run may read: that is no fault of the request. Neither is
    a storage that does not answer in time.

    Args:
        settings: source and test source, the task, the columns.
        seconds: that the look at each of the two may take.
    """
    look = Look()
    for each in settings.by_source():
        source = source_of(each.source)
        if source.is_seen_from_afar(each.source):
            look.add(looked_at(each.source, partial(source.require_readable, each), seconds))
    return look


def looked_at(what: str, require: Callable[[], object], seconds: float = SECONDS) -> Look:
    """Looks at something in a service, which need not answer from here.

    Args:
        what: it is called.
        require: raises `UserError` where something is wrong with it.
        seconds: that the look may take.
    """
    # Clients of services try again for minutes. A thread that is waiting for one must not keep the command.
    look = Look(unseen=[f"{what} could not be looked at within {seconds:g} s."])
    finished = Look()
    thread = threading.Thread(target=_look, args=(what, require, finished), daemon=True)
    thread.start()
    thread.join(seconds)
    return look if thread.is_alive() else finished


def _look(what: str, require: Callable[[], object], look: Look) -> None:
    try:
        require()
    except (AccessDeniedError, NoSuchStorageError, UnavailableError) as error:
        look.unseen.append(error.in_one_line)
    except UserError as error:
        look.problems.append(error.in_one_line)
    except ImportError as error:  # Whoever only compiles and sends pipelines need not have what reads data.
        look.unseen.append(f"{what} cannot be read here: the package {error.name} is not installed.")
    except Exception as error:  # Credentials and networks of several packages: the first step meets them or does not.
        look.unseen.append(f"{what} cannot be read from here: {type(error).__name__}: {str(error)[:200]}.")
