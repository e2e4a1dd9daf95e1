"""Tells, while a job runs, why pods of it have not started, and ends what only somebody could mend."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.cluster_jobs import Starting
from gpu_pipelines.targets.kubeflow.node_choices import patience


class Starts:
    """Says why pods have not started, each time that this changes, and ends what only somebody could mend.

    Args:
        jobs: where the job is.
        nodes: how many it has.
        say: takes a line.
        tell_of_nodes: whether pods for which there is no node are told of as well.
        is_elastic: whether the work begins with the nodes that are there: then one that runs is enough.
    """

    def __init__(
        self,
        jobs: Starting,
        nodes: int,
        say: Callable[[str], None],
        *,
        tell_of_nodes: bool = False,
        is_elastic: bool = False,
    ) -> None:
        self._jobs, self._nodes, self._say = jobs, nodes, say
        self._tells_of_nodes, self._is_elastic = tell_of_nodes, is_elastic
        self._said, self._since = "", 0.0

    def look(self, name: str) -> None:
        """Looks at a job.

        Raises:
            UserError: a pod cannot start, and could not for a quarter of an hour.
        """
        try:
            said, is_lasting = self._why(name)
        except UserError:
            # It is for the reader alone; the state of the job is asked for elsewhere.
            return
        if said and said != self._said:
            self._say(said)
        self._said = said
        self._since = (self._since or time.monotonic()) if is_lasting else 0.0
        if is_lasting and time.monotonic() - self._since > patience():
            # Its nodes cost what they cost at work, and the Job of Kubernetes would wait as long as it may run.
            raise UserError(f"The {self._jobs.kind} {name} does not start: {said}.", "Mend it, and run it again.")

    def _why(self, name: str) -> tuple[str, bool]:
        if self._tells_of_nodes:
            pods, why = self._jobs.without_node(name)
            if pods:
                return f"no node yet for {', '.join(pods)}: {why or 'the autoscaler says nothing'}", False
        held_up = self._jobs.held_up(name, self._nodes)
        if not held_up:
            return "", False
        return held_up.why, held_up.is_lasting and not (self._is_elastic and self._jobs.is_running(name))
