"""The tasks of lm-eval and of the user's own files: which ones a name means, and which metrics they have.

Nothing here loads a task's data or runs a task's functions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.benchmark_results import metric_name, plain
from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.artifacts.integrity import digest_of
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote, own_folder
from gpu_pipelines.errors import UserError, first_line, nearest, some_of
from gpu_pipelines.evaluation.benchmark_request import is_own
from gpu_pipelines.evaluation.gates import ChampionGate, Gate

_SUFFIXES = (".yaml", ".yml")
#: Stands for metrics of a task that its file does not tell.
_ANY = "*"
#: Aggregations of lm-eval from which an interval follows; `gpu_pipelines.evaluation.benchmarks.scores` computes them.
WITH_INTERVALS = ("mean", "perplexity", "weighted_perplexity", "bits_per_byte")


@dataclass(frozen=True)
class KnownTask:
    """A task, group or tag.

    Attributes:
        name: lm-eval's name of it.
        kind: `TASK`, `PY_TASK`, `GROUP` or `TAG`.
        path: its YAML file; empty for a tag.
        members: for a tag, the tasks that have it.
        is_own: whether it is in a file of the user's.
    """

    name: str
    kind: str
    path: str
    members: tuple[str, ...] = ()
    is_own: bool = False


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that is run as a whole.

    Attributes:
        name: of the task, group or tag.
        needed: what is known about it and its parts, by name.
        definition: SHA-256 of the user's files that define it, including data beside them; empty for lm-eval's own.
    """

    name: str
    needed: Mapping[str, KnownTask]
    definition: str = ""


class Catalog:
    """The tasks that lm-eval knows, read when needed.

    Args:
        benchmarks: names, and files or folders of the user's own.

    Attributes:
        known: all tasks, by name; the user's own win over those of lm-eval.

    Raises:
        UserError: a file or folder cannot be read, or holds no task.
    """

    def __init__(self, benchmarks: Sequence[str]) -> None:
        self._asked: dict[str, list[str]] = {}
        self._definitions: dict[str, str] = {}
        self.known: dict[str, KnownTask] = {} if all(map(is_own, benchmarks)) else dict(_of_lm_eval())
        for each in benchmarks:
            self._asked[each] = self._read(each) if is_own(each) else [each]

    def problems(self) -> list[str]:
        """What cannot be run: unknown names, and tasks that run what they should not."""
        found = []
        for asked, names in self._asked.items():
            for name in names:
                if name not in self.known:
                    near = nearest(asked, self.known, otherwise="Its command lists them: lm-eval ls tasks.")
                    here = f" A folder of your own is ./{asked}." if Path(asked).exists() else ""
                    found.append(f"lm-eval has no task, group or tag {asked!r} (benchmarks). {near}{here}")
                    continue
                for task in self._needed(name).values():
                    found += [f"The benchmark {asked!r} cannot be run: {why}" for why in self._refused(task)]
        return list(dict.fromkeys(found))

    def benchmarks(self) -> list[Benchmark]:
        """The benchmarks to run, in the order in which they were given."""
        found = {}
        for asked, names in self._asked.items():
            for name in names:
                found[name] = Benchmark(name, self._needed(name), self._definitions.get(asked, ""))
        return list(found.values())

    def metrics(self) -> dict[str, bool]:
        """The metrics of everything that is run, each with whether its interval will be known.

        If only lm-eval's code knows the metrics of a task, `TASK.*` stands for them.
        """
        return {
            name: known for names in self._asked.values() for each in names for name, known in self._metrics_of(each)
        }

    def _read(self, benchmark: str) -> list[str]:
        """Adds what stands in a file or folder, and returns what is to be run of it."""
        path = _local(benchmark)
        files = sorted(path.rglob("*.y*ml")) if path.is_dir() else [path]
        beside = [each for each in path.parent.glob("*.y*ml") if each != path] if path.is_file() else []
        told = {each: _read_yaml(each) for each in files if each.suffix in _SUFFIXES}
        read = {each: known for each, content in told.items() if (known := _known(content, each))}
        if not read:
            raise UserError(f"{benchmark} (benchmarks) holds no task for lm-eval.", "A task file has a task: NAME.")
        others = [known for each in beside if (known := _known(_read_yaml(each, strict=False), each))]
        self.known |= {known.name: known for known in (*others, *read.values())}
        hashes = sha256_of_tree(path if path.is_dir() else path.parent)
        # Python compiles a task's functions into a folder beside them when they are first run.
        own = {name: digest for name, digest in hashes.items() if "__pycache__" not in Path(name).parts}
        self._definitions[benchmark] = digest_of(own)
        grouped = {child for known in read.values() for child in self._children(known)}
        return [known.name for known in read.values() if known.name not in grouped]

    def _needed(self, name: str) -> dict[str, KnownTask]:
        found: dict[str, KnownTask] = {}
        left = [name]
        while left:
            known = self.known.get(left.pop())
            if known is not None and known.name not in found:
                found[known.name] = known
                left += self._children(known)
        return found

    def _children(self, known: KnownTask) -> list[str]:
        if known.kind == "TAG":
            return list(known.members)
        return [name for name, _ in _members(self._content(known))] if known.kind == "GROUP" else []

    def _content(self, known: KnownTask) -> dict[str, Any]:
        return _read_yaml(Path(known.path))

    def _refused(self, known: KnownTask) -> Iterator[str]:
        """Why a task is not run: it would run code that is neither lm-eval's nor the user's."""
        content = self._content(known) if known.path else {}
        if content.get("unsafe_code"):
            yield f"{known.name} runs the code that the model writes. Run it with lm-eval's own command, in a sandbox."
        if any(each.get("hf_evaluate") for each in content.get("metric_list") or () if isinstance(each, dict)):
            yield f"{known.name} downloads the code of a metric (hf_evaluate). Name a metric of lm-eval, or a function."
        if content.get("doc_to_image") or content.get("doc_to_audio"):
            yield f"{known.name} is about images or sounds, and the model takes texts."

    def _metrics_of(self, name: str) -> Iterator[tuple[str, bool]]:
        known = self.known.get(name)
        if known is None or known.kind == "PY_TASK":
            yield f"{plain(name)}.{_ANY}", True
        elif known.kind == "TASK":
            yield from _metrics_in(self._content(known), name)
        elif known.kind == "TAG":
            for each in known.members:
                yield from self._metrics_of(each)
        else:
            yield from self._metrics_of_group(known)

    def _metrics_of_group(self, known: KnownTask) -> Iterator[tuple[str, bool]]:
        content = self._content(known)
        for name, told in _members(content):
            if name not in self.known:  # it stands in the group alone
                yield f"{plain(f'{known.name}::{name}')}.{_ANY}", True
            elif set(told) & {"metric_list", "filter_list", "output_type"}:
                yield f"{plain(name)}.{_ANY}", True
            else:
                yield from self._metrics_of(name)
        listed = content.get("aggregate_metric_list") or []
        for each in listed if isinstance(listed, list) else [listed]:
            yield metric_name(known.name, plain(str(each.get("metric")))), True
            if each.get("filter_list"):
                yield f"{plain(known.name)}.{_ANY}", True


def problems_in_catalog(benchmarks: Sequence[str], gates: Mapping[str, Gate | ChampionGate]) -> list[str]:
    """Problems with benchmarks and the gates on them; needs lm-eval.

    Args:
        benchmarks: names, and files or folders of the user's own.
        gates: those on metrics of benchmarks, by their texts.
    """
    try:
        catalog = Catalog(benchmarks)
        if found := catalog.problems():
            return found
        metrics = catalog.metrics()
    except UserError as error:
        return [error.in_one_line]
    return [why for text, gate in gates.items() if (why := wrong_gate(text, gate, metrics))]


def wrong_gate(text: str, gate: Gate | ChampionGate, metrics: Mapping[str, bool]) -> str:
    """Why a gate on a metric of a benchmark cannot be checked; empty if it can.

    Args:
        text: of the gate.
        gate: the gate.
        metrics: the existing metrics, each with whether its interval is known; see `Catalog.metrics`.
    """
    task = gate.metric.partition(".")[0]
    if gate.metric not in metrics:
        if f"{task}.{_ANY}" in metrics:
            return ""
        of_task = [name for name in metrics if name.partition(".")[0] == task]
        has = f"it has {', '.join(of_task)}" if of_task else f"the benchmarks have {some_of(metrics, most=10)}"
        near = nearest(gate.metric, metrics, otherwise="")
        return f"The gate {text!r} is about {gate.metric}, which the benchmark has not; {has}. {near}".strip()
    if isinstance(gate, ChampionGate) and gate.confidence is not None and not metrics[gate.metric]:
        return (
            f"The gate {text!r} asks for an interval; lm-eval computes {gate.metric} from all documents at once, so "
            "none is known. Leave out at …%."
        )
    return ""


def _local(benchmark: str) -> Path:
    """A file or folder of the user's on this machine; of one in object storage its folder is copied whole."""
    if not is_remote(benchmark):
        path = Path(benchmark).expanduser().resolve()
        if not path.exists():
            raise UserError(f"There is no file or folder {benchmark!r} with tasks for lm-eval (benchmarks).")
        return path
    if not benchmark.endswith(_SUFFIXES):
        return fetched_folder(benchmark)
    folder, _, name = benchmark.rpartition("/")
    path = fetched_folder(folder) / name
    if not path.is_file():
        raise UserError(f"There is no file {benchmark} (benchmarks).")
    return path


def _read_yaml(path: Path, strict: bool = True) -> dict[str, Any]:
    """What a task file says, with what it includes; functions are their names.

    Raises:
        UserError: it cannot be read; where it is not `strict`, it says nothing then.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        content: dict[str, Any] = load_yaml(path, resolve_func=False)
    except Exception as error:  # whatever the YAML reader raises, and ValueError of what is no mapping
        if not strict:
            return {}
        raise UserError(f"{path} is not a task file for lm-eval: {first_line(error)}") from None
    return content


def _known(content: Mapping[str, Any], path: Path) -> KnownTask | None:
    """What a task file of the user's declares; None for one that others include."""
    for key, kind in (("class", "PY_TASK"), ("group", "GROUP"), ("task", "TASK")):
        name = content.get("task" if key == "class" else key)
        if key in content and isinstance(name, str):
            return KnownTask(name, kind, str(path), is_own=True)
    return None


def _of_lm_eval() -> Mapping[str, KnownTask]:
    """All that lm-eval has; its 14,000 files are read once on each machine."""
    import lm_eval

    folder = Path(lm_eval.__file__).parent / "tasks"
    kept = own_folder("lm-eval") / f"tasks-{version('lm-eval')}.json"
    try:
        if kept.stat().st_mtime >= folder.stat().st_mtime:
            rows = json.loads(kept.read_text(encoding="utf-8"))
            return {
                name: KnownTask(name, kind, str(folder / file) if file else "", tuple(members))
                for name, kind, file, members in rows
            }
    except (OSError, ValueError, LookupError, TypeError):
        pass  # there is none, or it is cut off: it is made anew
    from lm_eval.tasks import TaskManager

    print("reading the names of lm-eval's tasks, which takes up to a minute once on a machine", flush=True)
    entries = TaskManager().task_index
    known = {
        name: KnownTask(name, entry.kind.name, str(entry.yaml_path or ""), tuple(sorted(entry.tags)))
        for name, entry in entries.items()
    }
    rows = [
        [each.name, each.kind, str(Path(each.path).relative_to(folder)) if each.path else "", each.members]
        for each in known.values()
    ]
    scratch = kept.with_name(f".{kept.name}.{os.getpid()}")
    scratch.write_text(json.dumps(rows), encoding="utf-8")
    scratch.replace(kept)
    return known


def _members(content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The tasks, groups and tags that a group names, each with what it says of it otherwise than its own file."""
    listed = content.get("task")
    found: list[tuple[str, Mapping[str, Any]]] = []
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, str):
            found.append((each, {}))
        elif isinstance(each, dict):
            found.append((str(each.get("group") or each.get("task")), each))
    return found


def _metrics_in(content: Mapping[str, Any], task: str) -> Iterator[tuple[str, bool]]:
    """The metrics of a task file, each with whether its interval will be known."""
    from lm_eval.api import metrics  # noqa: F401 (registers them)
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, get_metric_aggregation

    listed = content.get("metric_list")
    if listed is None:
        listed = [{"metric": name} for name in DEFAULT_METRIC_REGISTRY.get(content.get("output_type"), ())]
    filters = [str(each.get("name")) for each in content.get("filter_list") or [{"name": "none"}]]
    for each in listed:
        name = str(each["metric"])
        aggregation = each.get("aggregation") or getattr(get_metric_aggregation(name), "__name__", "mean")
        for number, kind in enumerate(filters):
            yield metric_name(task, name_within(name, kind if number else "")), aggregation in WITH_INTERVALS
    if content.get("process_results"):
        yield f"{plain(task)}.{_ANY}", True  # a function makes them, and may make more


def name_within(metric: str, filter_name: str) -> str:
    """The name of a metric within its task: METRIC, or METRIC.FILTER for another filter than the first."""
    # That of a function is given with the path of its file.
    metric = plain(metric.rpartition("/")[2].rpartition(".")[2])
    return f"{metric}.{plain(filter_name)}" if filter_name else metric
