"""Which files of the sources are read, and what in their folders is not, for the log and `dataset.json`."""

from __future__ import annotations

from typing import Any

from gpu_pipelines.data.sources.listing import HIDDEN, shown_path
from gpu_pipelines.data.sources.source import SourceFiles

_EXAMPLES = 5


class FilesOfSources:
    """The files of a source and of a test source.

    Args:
        source: what is read.
        test_source: what the test split is read from; None where it is taken from the source.
    """

    def __init__(self, source: SourceFiles, test_source: SourceFiles | None) -> None:
        sources = [("", source), *([("test_source: ", test_source)] if test_source else [])]
        # The parts in which a service gives its rows are no files.
        self.read = sum(len(one) for _, one in sources if one.service is None)
        self._names: dict[str, list[str]] = {}
        for prefix, one in sources:
            for name, reason in one.passed_over.items():
                self._names.setdefault(reason, []).append(f"{prefix}{shown_path(name)}")

    def passed_over(self) -> dict[str, dict[str, Any]]:
        """By the reason, how many are not read (`files`), and the first names (`examples`)."""
        return {
            reason: {"files": len(names), "examples": sorted(names)[:_EXAMPLES]}
            for reason, names in sorted(self._names.items())
        }

    def say(self) -> None:
        """Prints it."""
        for reason, said in self.passed_over().items():
            more = ", …" if said["files"] > len(said["examples"]) else ""
            # Hidden files are usual, and nobody means them to be read.
            kind = "" if reason == HIDDEN else "warning: "
            print(f"{kind}passed over {said['files']:,} × {reason}: {', '.join(said['examples'])}{more}", flush=True)
