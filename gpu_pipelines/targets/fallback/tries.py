"""The record of tries of a list of choices, and why they failed: a document that is written before anything is sent.

The successor of a dead process reads from it what may have been sent, and searches for that by its label. Two processes
never both send: each change of the document names the version that it replaces.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators.fallback import LEAST_SECONDS
from gpu_pipelines.artifacts.documents import fields_in
from gpu_pipelines.artifacts.remote_files import RemoteFolder, is_remote, read_remote
from gpu_pipelines.artifacts.versioned_file import VersionedFile, versioned_file
from gpu_pipelines.errors import DamagedError, NoMachinesError

#: Below the place of runs' artifacts: a folder for each run, with a document for each step with choices.
FOLDER = "fallback"
#: States of a try that has not ended: it was recorded and may have been sent; it runs, or waits for machines.
ASKED, SENT = "asked", "sent"
#: Final states of a try. Only after the first two the next choice is tried.
NO_CAPACITY, NO_QUOTA = "no capacity", "no quota"
PREEMPTED = "preempted"
SUCCEEDED, FAILED, INTERRUPTED, TOO_DEAR = "succeeded", "failed", "interrupted", "stopped at the price limit"
GOES_ON_AFTER = (NO_CAPACITY, NO_QUOTA)
#: Most tries in a job's report, and most characters of each result.
_MOST_TOLD, _LONGEST_TOLD = 30, 300


@dataclass(frozen=True)
class Choice:
    """One of the machines to try.

    Attributes:
        told: its name in sentences.
        region: its region; empty for that of the run.
        per_hour: list price of all its machines, USD per hour; None if unknown.
        hours: the longest that a job may run on it.
        machines: the target's form of it.
    """

    told: str
    region: str = ""
    per_hour: float | None = None
    hours: float | None = None
    machines: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def each_of(cls, content: Iterable[Mapping[str, Any]]) -> list[Choice]:
        """Reads what `asdict` returned for each, without what a later version has added."""
        return [cls(**fields_in(cls, each)) for each in content]


@dataclass
class Try:
    """A choice that was tried.

    Attributes:
        number: from 1 on.
        choice: number of the choice, from 0 on.
        told: name of the choice.
        label: label of the job that may have been sent.
        holder: the process that sends it.
        asked: when it was recorded, seconds since 1970.
        state: one of the states of this module.
        reason: the service's answer.
        job: name of the job; empty before it is known.
        began: when its machines began to cost, seconds since 1970; None before.
        ended: when they ended.
        ending: why its follower cancelled its job; empty if it did not.
        usd: their cost at list price, USD; None if no price is known, and before the end.
    """

    number: int
    choice: int
    told: str
    label: str
    holder: str
    asked: float
    state: str = ASKED
    reason: str = ""
    job: str = ""
    began: float | None = None
    ended: float | None = None
    ending: str = ""
    usd: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether its job may run, or begin to."""
        return self.state in (ASKED, SENT)

    @property
    def seconds(self) -> float:
        """The seconds that its machines have cost so far."""
        return 0.0 if self.began is None else max(0.0, (self.ended or time.time()) - self.began)


class Tries:
    """The tries of one step of a run.

    Args:
        choices: the choices to try, in order.
        file: the document.
        max_price: most that all tries together may cost, USD; None for no limit.

    Attributes:
        choices: as above.
        made: the tries, in order.
        refused: why nothing more is tried; empty if it is.
        holder: identifies this process.
    """

    def __init__(self, choices: Sequence[Choice], file: VersionedFile, max_price: float | None = None) -> None:
        self.choices = list(choices)
        self.made: list[Try] = []
        self.refused = ""
        self.holder = secrets.token_hex(8)
        self.max_price = max_price
        self._file, self._version = file, ""
        self.load()

    def load(self) -> None:
        """Reads the document; there is none before the first try."""
        content, self._version = self._file.read()
        document = read_tries(content) if content else {}
        self.made = [Try(**each) for each in document.get("tries", [])]
        self.refused = document.get("refused", "")

    @property
    def current(self) -> Try | None:
        """The last try, if it has not ended."""
        return self.made[-1] if self.made and self.made[-1].is_open else None

    @property
    def spent(self) -> float:
        """The cost of all tries so far, USD."""
        return sum(self._cost(each) or 0.0 for each in self.made)

    def choice_of(self, made: Try) -> Choice:
        """What was tried."""
        return self.choices[made.choice]

    def begin(self) -> Try | None:
        """Records the next try, which may then be sent.

        Returns:
            The try; None if another process has changed the document, which is read again then.

        Raises:
            NoMachinesError: there is nothing left to try, or no money.
        """
        if self.refused:
            raise NoMachinesError(self.refused)
        last = self.made[-1] if self.made else None
        first = 0 if last is None else last.choice + (last.state in GOES_ON_AFTER)
        left = [number for number in range(first, len(self.choices)) if self._is_worthwhile(self.choices[number])]
        if not left:
            self._refuse(_nothing_left(self, first))
            return None
        number, choice = left[0], self.choices[left[0]]
        label = secrets.token_hex(8)
        self.made.append(Try(len(self.made) + 1, number, choice.told, label, self.holder, time.time()))
        return self.made[-1] if self._save() else None

    def for_report(self) -> str:
        """The tries so far, of which the last is the job that reads it: `TRIES` of its environment."""
        *before, last = told_tries([asdict(each) for each in self.made[-_MOST_TOLD:]])
        cut = [[text[:_LONGEST_TOLD] for text in row] for row in before]
        return json.dumps([*cut, [*last[:-1], "this training"]])

    def _is_worthwhile(self, choice: Choice) -> bool:
        """Whether the money lasts long enough for a choice."""
        seconds = self.seconds_left(choice)
        return seconds is None or seconds >= LEAST_SECONDS

    def seconds_left(self, choice: Choice) -> float | None:
        """How long the money lasts for a choice; None for any time."""
        if self.max_price is None or not choice.per_hour:
            return None
        return max(0.0, (self.max_price - self.spent) / choice.per_hour * 3600)

    @property
    def is_spent(self) -> bool:
        """Whether the last try has used up the money."""
        left = self.seconds_left(self.choice_of(self.made[-1]))
        return left is not None and left <= 0

    def too_dear(self) -> NoMachinesError:
        """The error that the last try was stopped for its price."""
        return NoMachinesError(
            f"{self.made[-1].told} was stopped at ${self.spent:,.2f}, the limit of --max-price.",
            "Its checkpoints are kept: a run with a higher limit continues from them.",
        )

    def change(self, **changes: Any) -> bool:
        """Changes the last try; False if somebody else has changed the document, which is read again then."""
        last = self.made[-1]
        for name, value in changes.items():
            setattr(last, name, value)
        if not last.is_open:
            last.usd = self._cost(last)
        return self._save()

    def refuse(self, why: str) -> None:
        """Records that nothing more is tried, with the reason as a sentence."""
        self.refused = why
        self._save()

    def _refuse(self, why: str) -> None:
        tried = "; ".join(f"{each.told}: {each.state}" for each in self.made)
        self.refused = f"{why}. Tried: {tried}." if tried else f"{why}."
        if not self._save():
            return
        raise NoMachinesError(
            self.refused, "Try again later, or name further machines, ways to buy them, or regions; docs/fallback.md."
        )

    def _cost(self, made: Try) -> float | None:
        price = self.choices[made.choice].per_hour if made.choice < len(self.choices) else None
        return None if price is None else round(made.seconds / 3600 * price, 6)

    def _save(self) -> bool:
        document = {"format_version": 1, "refused": self.refused, "tries": [asdict(each) for each in self.made]}
        version = self._file.write(json.dumps(document, indent=2).encode(), self._version)
        if version is None:
            self.load()
            return False
        self._version = version
        return True


def _nothing_left(tries: Tries, first: int) -> str:
    """Why nothing more is tried, without the full stop."""
    if first >= len(tries.choices):
        return f"None of the {len(tries.choices)} choices was available"
    choice = tries.choices[first]
    return (
        f"${tries.spent:,.2f} of the ${tries.max_price or 0:,.2f} that --max-price leaves this step are spent, and the "
        f"rest is not worth beginning {choice.told}, which costs ${choice.per_hour:,.2f} an hour"
    )


def read_tries(content: bytes) -> dict[str, Any]:
    """The document of the tries of a step.

    Raises:
        DamagedError: it is not one.
    """
    try:
        document: dict[str, Any] = json.loads(content)
        return {**document, "tries": [fields_in(Try, each) for each in document["tries"]]}
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"The record of tries cannot be read: {type(error).__name__}: {error}.") from None


def documents_in(folder: str) -> dict[str, dict[str, Any]]:
    """The tries of the steps of a run, by the name of the document; empty if there are none.

    Args:
        folder: folder of the run's tries.

    Raises:
        UserError: it cannot be read.
    """
    if is_remote(folder):
        names = [name for name in RemoteFolder(folder).names() if name.endswith(".json")]
        return {name: read_tries(read_remote(f"{folder}/{name}")) for name in names}
    return {path.name: read_tries(path.read_bytes()) for path in sorted(Path(folder).glob("*.json"))}


def tries_at(folder: str, step: str, of: Any, choices: Sequence[Choice], max_price: float | None) -> Tries:
    """The tries of a step, which a successor of this process finds as well.

    Args:
        folder: folder of the run's tries.
        step: name of the step.
        of: distinguishes the step from others with its name, such as in a loop; JSON.
        choices: the choices to try.
        max_price: most that the run may cost, USD, including what other steps have spent; None for no limit.
    """
    stem = re.sub(r"[^a-z0-9-]+", "-", step.lower())[:60]
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:10]
    name = f"{stem}-{digest}.json"
    if not is_remote(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    if max_price is not None:
        others = [each for other, each in documents_in(folder).items() if other != name]
        max_price = max(0.0, max_price - sum(made.get("usd") or 0.0 for each in others for made in each["tries"]))
    return Tries(choices, versioned_file(f"{folder}/{name}"), max_price)


def told_tries(tries: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Tries as rows of a table: number, choice, start, duration, cost and result."""
    rows = []
    for each in (Try(**found) for found in tries):
        when = datetime.fromtimestamp(each.asked, timezone.utc)
        cost = "" if each.usd is None or each.began is None else f"${each.usd:,.{2 if each.usd >= 1 else 4}f}"
        told = f"{each.state}: {each.reason}" if each.reason else each.state
        rows.append([str(each.number), each.told, f"{when:%Y-%m-%d %H:%M:%S}", _took(each), cost, told])
    return rows


def _took(made: Try) -> str:
    if made.began is None:
        return ""
    return f"{made.seconds / 3600:.1f} h" if made.seconds >= 3600 else f"{made.seconds:.0f} s"
