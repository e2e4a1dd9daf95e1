"""Runs a command that sees the bucket under `/gcs`, as on Vertex AI; visible only to the command and its children.

Started as a program in its own namespaces (`unshare --user --map-root-user --mount`), which need no privileges.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def command_with_bucket(folder: Path) -> list[str]:
    """The prefix of a command that shows a folder to it under `/gcs`."""
    return [*UNSHARE, sys.executable, __file__, str(folder)]


def require_mounts() -> None:
    """Checks that this machine allows user namespaces.

    Raises:
        UserError: it does not.
    """
    from gpu_pipelines.errors import UserError

    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
        problem = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        raise UserError(
            f"The emulator cannot show buckets under /gcs to the steps: {problem}.",
            "It needs Linux with user namespaces (sysctl kernel.unprivileged_userns_clone=1), or root.",
        )


def main() -> None:
    """Builds a root like this machine's with one more folder, changes into it, and executes the command."""
    folder, *command = sys.argv[1:]
    here, root = Path.cwd(), Path(tempfile.mkdtemp(prefix="root-", dir=Path(folder).parent))
    _mount("-t", "tmpfs", "none", str(root))
    for entry in Path("/").iterdir():
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        elif entry.is_dir() and entry.name != "gcs":
            place.mkdir()
            _mount("--rbind", str(entry), str(place))
    (root / "gcs").mkdir()
    _mount("--bind", folder, str(root / "gcs"))
    os.chroot(root)
    os.chdir(here)
    os.execvp(command[0], command)  # noqa: S606


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)  # noqa: S607


if __name__ == "__main__":
    main()
