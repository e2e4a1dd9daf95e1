"""What can be asked of written text, and what is wrong with a request, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluations import images_dataset, settings_in, text_dataset
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.dag.advanced import parameters_of_users
from gpu_pipelines.dag.placement import EVALUATES
from gpu_pipelines.dag.places import FILE
from gpu_pipelines.dag.train_evaluate_upload import SETTINGS, places
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.models.loading import Loaded
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.targets.local.runner.digests import state_of_steps
from gpu_pipelines.tasks.causal_lm.answering import Answering
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel

WRONG = {
    "unknown": ({"generate": ["exact_mach"]}, "Did you mean 'exact_match'?"),
    "no function": ({"generate": ["a:b:c"]}, "package.module:function"),
    "twice": ({"generate": ["rouge_l", "mine:rouge_l"]}, "which is a metric already"),
    "of the task": ({"generate": ["mine:loss"]}, "which is a metric already"),
    "tokens": ({"generate": ["rouge_l"], "max_new_tokens": -1}, "give 1 or more"),
    "rows": ({"generate": ["rouge_l"], "generate_rows": -1}, "or 0 for all"),
    "writer": ({"generate": ["rouge_l"], "generate_with": "vlm"}, "Did you mean 'vllm'?"),
    "no schema": ({"generate": ["json_schema"]}, "Give json_schema"),
    "no JSON": ({"generate": ["json_schema"], "json_schema": "{a"}, "is not JSON"),
    "idle schema": ({"generate": ["rouge_l"], "json_schema": "{}"}, "Add json_schema to generate"),
    "no judge": ({"generate": ["judge"]}, "Give judge, an address"),
    "idle judge": ({"judge": "https://host/v1"}, "generate does not name judge"),
    "address": ({"generate": ["judge"], "judge": "host", "judge_model": "m"}, "judge is not an address"),
    "no model": ({"generate": ["judge"], "judge": "https://host/v1"}, "judge_model is empty"),
    "gate": ({"gates": ["exact_match>=0.5"]}, "exact_match needs generate=exact_match"),
    "function of checkpoints": (
        {"generate": ["rouge_l"], "scoring_function": "mine:score"},
        "generate and scoring_function are both given",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_told(case: str) -> None:
    given, said = WRONG[case]
    problems = EvaluationSettings(**given).problems("causal_lm")  # type: ignore[arg-type]
    assert any(said in problem for problem in problems), problems
    assert not EvaluationSettings(generate=["rouge_l"], gates=["rouge_l>=0.5"]).problems("causal_lm")


def test_tasks_without_text_refuse_it(tmp_path: Path) -> None:
    (problem,) = EvaluationSettings(generate=["exact_match"]).problems("image_classification")
    assert "models of image_classification write no text" in problem
    assert "it is for causal_lm" in problem
    images = images_dataset(tmp_path / "data")
    with pytest.raises(UserError, match="write no text"):
        evaluate_checkpoints(settings_in(tmp_path, generate=["exact_match"]), images.directory, tmp_path, tmp_path)


def test_plain_texts_have_no_references(tmp_path: Path) -> None:
    dataset = text_dataset(tmp_path / "data")
    assert len(Answering(dataset).pairs("test")) == 40
    (tmp_path / "plain.txt").write_text("\n\n".join(f"a plain text of {n} words and no more" for n in range(60)))
    settings = PrepareSettings(task="causal_lm", source=str(tmp_path / "plain.txt"), sequence_length=32)
    prepare_data(settings, tmp_path / "plain")
    with pytest.raises(UserError, match="have no references") as caught:
        Answering(Dataset(tmp_path / "plain"))
    assert "prompt and completion" in caught.value.remedy


def test_models_that_are_none_of_transformers_do_not_write(tmp_path: Path) -> None:
    dataset = text_dataset(tmp_path / "data")
    loaded = Loaded(CausalLanguageModel.for_dataset(dataset), nn.Linear(2, 2), [])
    with pytest.raises(UserError, match="builds Linear, which is not a model of transformers that writes text"):
        Answering(dataset).write(loaded, [np.array([1, 2], dtype=np.int32)], 4)


def test_what_is_not_on_this_machine_is_told(tmp_path: Path) -> None:
    def problems(**given: Any) -> list[str]:
        return EvaluationSettings(**given).problems_here()

    assert "There is no file" in problems(generate=[f"{tmp_path}/none.py:f"])[0]
    assert "cannot be read" in problems(generate=["json_schema"], json_schema=f"{tmp_path}/none.json")[0]
    judge = {"generate": ["judge"], "judge": "https://host/v1", "judge_model": "m"}
    assert "has no such variable" in problems(**judge, judge_key="NO_SUCH_KEY")[0]
    assert not problems(**judge)


def test_files_of_functions_and_schemas_are_places_and_change_what_is_reused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(prompt, answer, reference):\n    return 1\n")
    (tmp_path / "schema.json").write_text('{"$schema": "https://json-schema.org/draft/2020-12/schema"}')
    arguments = {
        **{name: declared.default for name, declared in parameters_of_users(SETTINGS.values()).items()},
        "task": "causal_lm",
        "source": "gs://bucket/rows.jsonl",
        "registry": str(tmp_path / "registry"),
        "generate": [f"{tmp_path}/mine.py:f", "json_schema"],
        "json_schema": str(tmp_path / "schema.json"),
    }
    named = {place.parameter: place.uri for place in places(arguments) if place.kind == FILE}
    assert named == {"generate": f"{tmp_path}/mine.py", "json_schema": f"{tmp_path}/schema.json"}
    before = state_of_steps(arguments)[EVALUATES]
    (tmp_path / "schema.json").write_text("{}")
    assert state_of_steps(arguments)[EVALUATES] != before
    as_text = {**arguments, "json_schema": '{"$schema": "https://json-schema.org/draft/2020-12/schema"}'}
    assert {place.parameter for place in places(as_text) if place.kind == FILE} == {"generate"}
