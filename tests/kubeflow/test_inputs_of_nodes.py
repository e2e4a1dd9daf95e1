"""The inputs of a step on their way to the nodes of its TrainJob."""

from __future__ import annotations

from pathlib import Path

from gpu_pipelines.targets.kubeflow.in_cluster.exchange import Exchange


def test_each_artifact_of_a_list_gets_to_the_nodes(tmp_path: Path) -> None:
    for turn in ("a", "b"):
        (tmp_path / turn).mkdir()
        (tmp_path / turn / "training.json").write_text(turn)
    given = [{"uri": str(tmp_path / turn)} for turn in ("a", "b")]
    elsewhere = {"uri": "minio://mlpipeline/c", "metadata": {"place": "gs://bucket/c"}}
    document = {
        "inputs": {
            "artifacts": {"collected": {"artifacts": [*given, elsewhere]}, "checkpoints": {"artifacts": [{**given[0]}]}}
        }
    }
    sent = Exchange(str(tmp_path / "shared")).send_inputs(document)["inputs"]["artifacts"]
    first, second, third = sent["collected"]["artifacts"]
    assert [Path(each["uri"], "training.json").read_text() for each in (first, second)] == ["a", "b"]
    assert third == elsewhere
    assert sent["checkpoints"]["artifacts"][0]["uri"] == str(tmp_path / "shared/inputs/checkpoints")
