"""One writer at a time for the checkpoints of a training: a lease in their folder that its holder renews.

Two trainings that write into one folder delete each other's checkpoints and mix their metrics. The writer holds
`writer.json`, which names it, and renews it four times in the length of a lease. Nobody has to clear up after a writer
that died: a lease that is not renewed for its length has expired. Clocks need not agree, because a successor watches
for that long itself.

| state of the folder's lease | what a new writer does |
|---|---|
| none, or given back | begins at once |
| of a process of this machine that is gone | begins at once |
| not renewed for more than ten of its lengths, by its own date | begins at once |
| not renewed while it is watched, for its length (60 s) | begins then |
| renewed by the same run, such as a pod that was replaced and still saves its state | waits up to two lengths (120 s) |
| renewed by another run | is refused |
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.artifacts.versioned_file import VersionedFile, versioned_file
from gpu_pipelines.errors import UserError

LOCK = "writer.json"
LEASE_SECONDS = 60.0
#: Renewals in the length of a lease, and lengths after which its own date counts as long ago.
_RENEWALS, _LONG_AGO = 4, 10
#: Lengths of a lease for which a restarted run waits for its former self.
_PATIENCE = 2
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class _Holder:
    """The content of `writer.json`.

    Attributes:
        token: unique to this holder.
        run: the run that it belongs to; empty if none is known.
        host: name of its machine, for the reader.
        machine: distinguishes one machine, and one container on it, from all others.
        process: number of its process there.
        began: when that process began, in the kernel's ticks since the boot of the machine.
        renewed: time of the last renewal, by its own clock, seconds since 1970.
        lease: seconds for which a renewal is valid.
    """

    token: str = ""
    run: str = ""
    host: str = "a machine that is not named"
    machine: str = ""
    process: int = 0
    began: int = 0
    renewed: float = 0.0
    lease: float = LEASE_SECONDS

    @classmethod
    def loads(cls, content: bytes) -> _Holder:
        """Reads the file; if it cannot be read, all fields have their defaults."""
        try:
            found: dict[str, Any] = json.loads(content)
            return cls(**{name: type(default)(found[name]) for name, default in asdict(cls()).items()})
        except (ValueError, KeyError, TypeError):
            return cls()

    def dumps(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode()

    @property
    def is_gone(self) -> bool:
        """Whether it is known without waiting that this holder no longer writes."""
        if self.is_here:
            return not self._runs
        return bool(self.renewed) and time.time() - self.renewed > _LONG_AGO * self.lease

    @property
    def is_alive_here(self) -> bool:
        """Whether it is known without waiting that this holder still writes."""
        return self.is_here and self._runs

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine, where its process can be checked."""
        return self.machine == _this_machine() != ""

    @property
    def _runs(self) -> bool:
        return bool(self.process) and ticks_at_start(self.process) == self.began


class CheckpointLock:
    """The right to write the checkpoints of a folder.

    Args:
        uri: the folder, a directory or `gs://…`.
        run: the run of this writer: it waits for the end of a writer of the same run, and is refused while any other
            writes. Empty if none is known.
        lease: seconds without renewal after which a writer has lost its right.
    """

    def __init__(self, uri: str, run: str = "", lease: float = LEASE_SECONDS) -> None:
        self._uri, self._run, self._lease = uri, run, lease
        self._file: VersionedFile = versioned_file(f"{uri.rstrip('/')}/{LOCK}")
        self._token = uuid.uuid4().hex
        self._version = ""
        self._renewed = 0.0
        self._lost = ""
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="checkpoint lock")

    def acquire(self) -> None:
        """Waits until nobody else writes, and keeps the right from then on; the module says for how long.

        Raises:
            UserError: another training writes there, it is a file, or the storage cannot be reached.
        """
        if not is_remote(self._uri):
            try:
                Path(self._uri).mkdir(parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
                why = f"{self._uri} is no folder and cannot be made one: {error.strerror}."
                raise UserError(why, "Give another folder.") from None
        seen, since, first, told = "", 0.0, time.monotonic(), False
        while True:
            content, version = self._read()
            holder, now = _Holder.loads(content), time.monotonic()
            if holder.token == self._token:
                # The lock was taken, but the answer was lost.
                self._version, self._renewed = version, now
                break
            renewed = bool(seen) and version not in ("", seen)
            if version != seen:
                seen, since = version, now
            if (not version or holder.is_gone or now - since > holder.lease) and self._take(version):
                break
            self._require_patience(holder, renewed=renewed, waited=now - first)
            if version and not told:
                told = True
                print(
                    f"waiting up to {holder.lease:.0f} s for {_named(holder)}, which wrote to {self._uri}", flush=True
                )
            time.sleep(min(_SECONDS_BETWEEN_LOOKS, holder.lease / (2 * _RENEWALS)))
        self._thread.start()

    def _require_patience(self, holder: _Holder, *, renewed: bool, waited: float) -> None:
        """Raises UserError if waiting for a holder does not help."""
        alive = renewed or holder.is_alive_here
        is_former_self = bool(self._run) and holder.run == self._run and waited <= _PATIENCE * holder.lease
        if alive and not is_former_self:
            raise UserError(
                f"Another training writes to {self._uri}: {_named(holder)}.",
                "Wait until it ends, stop it, or give another checkpoint_uri. If it is dead, its lock expires after "
                f"{holder.lease:.0f} s.",
            )

    def require_held(self) -> None:
        """Checks, before a write, that nobody has taken the right in the meantime.

        Raises:
            UserError: somebody has, because this process did not renew its lease in time.
        """
        if not self._lost and time.monotonic() - self._renewed > self._lease:
            self._renew()
        if self._over.is_set() and not self._lost:
            raise UserError(f"Nothing more is written to {self._uri}: the training has ended.")
        if self._lost:
            raise UserError(
                f"{self._uri} is in use by another training: {self._lost}.",
                "This training no longer writes there. Stop the other one, or give another checkpoint_uri.",
            )

    def release(self) -> None:
        """Gives the right back; the next writer begins at once."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._changing, suppress(UserError, OSError):
            # If it cannot be deleted, it expires after its length.
            if self._version and not self._lost:
                self._file.delete(self._version)
            self._version = ""

    def __enter__(self) -> CheckpointLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _read(self) -> tuple[bytes, str]:
        try:
            return self._file.read()
        except OSError as error:
            raise UserError(f"{self._uri} cannot be read: {error.strerror or error}.") from None

    def _take(self, version: str) -> bool:
        asked = time.monotonic()
        try:
            taken = self._file.write(self._as_holder().dumps(), version)
        except OSError as error:
            raise UserError(f"{self._uri} cannot be written to: {error.strerror or error}.") from None
        if taken is not None:
            self._version, self._renewed = taken, asked
        return taken is not None

    def _keep(self) -> None:
        while not self._over.wait(self._lease / _RENEWALS):
            # If the storage fails now, the next renewal may succeed, or somebody else takes over.
            with suppress(UserError, OSError):
                self._renew()

    def _renew(self) -> None:
        with self._changing:
            if self._lost or not self._version or self._take(self._version):
                return
            content, version = self._read()
            holder = _Holder.loads(content)
            # If it is still this one's, the answer to the last renewal was lost.
            if holder.token != self._token or not self._take(version):
                self._lost = _named(holder) if content else f"somebody who has removed {LOCK}"

    def _as_holder(self) -> _Holder:
        process = os.getpid()
        return _Holder(
            token=self._token,
            run=self._run,
            host=socket.gethostname(),
            machine=_this_machine(),
            process=process,
            began=ticks_at_start(process),
            renewed=time.time(),
            lease=self._lease,
        )


def _named(holder: _Holder) -> str:
    process = f"process {holder.process} on {holder.host}" if holder.process else holder.host
    return f"{process} (run {holder.run})" if holder.run else process


def _this_machine() -> str:
    """This boot of this machine and the container in it, whose process numbers are its own; empty if not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def ticks_at_start(process: int) -> int:
    """When a process of this machine began, in ticks (field 22 of proc(5)'s stat); 0 if it does not run.

    Setting the clock does not change it. On macOS it is not known: 0.
    """
    try:
        state, *others = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if state in ("Z", "X") else int(others[18])
