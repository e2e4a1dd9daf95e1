"""Pipeline parameters from text and from YAML, for every type of KFP, with all problems listed at once."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest
from kfp import dsl

from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.driver.parameters.advanced_fields import as_taken, fields_of
from gpu_pipelines.driver.parameters.arguments import all_arguments
from gpu_pipelines.driver.parameters.interface import parameters_of_pipeline
from gpu_pipelines.errors import UserError
from gpu_pipelines.pipelines.train_evaluate_upload.pipeline import build
from gpu_pipelines.targets.local.target import LocalTarget
from gpu_pipelines.tasks.tasks import BUILT_IN, defaults_of_task

DEFAULTS = {
    "text": "a text",
    "count": 3,
    "rate": 0.5,
    "flag": False,
    "items": ["a", "b"],
    "options": {"k": 1},
    "maybe": None,
}


@dsl.component
def noop(text: str, count: int, rate: float, flag: bool, items: list, options: dict) -> None:
    """Does nothing."""


@dsl.pipeline(name="every-type")
def every_type(
    text: str = "a text",
    count: int = 3,
    rate: float = 0.5,
    flag: bool = False,
    items: list = ["a", "b"],  # noqa: B006 (KFP takes the default from here)
    options: dict = {"k": 1},  # noqa: B006
    maybe: Optional[str] = None,  # noqa: UP045 (KFP does not know the other form)
) -> None:
    noop(text=text, count=count, rate=rate, flag=flag, items=items, options=options)


@dsl.pipeline(name="required")
def required(source: str, count: int, rate: float = 0.5) -> None:
    noop(text=source, count=count, rate=rate, flag=True, items=[], options={})


def pipeline_arguments(pipeline: Any, assignments: Sequence[str], file: Path | None) -> dict[str, Any]:
    """All parameters of a run of a KFP pipeline."""
    known = parameters_of_pipeline(pipeline)
    return all_arguments(known, assignments, file, fields=fields_of(pipeline.name, known))


class InPlace(LocalTarget):
    """A target that leaves every component as it is."""

    def place(self, component: Any, plan: Any) -> Any:
        return component


@pytest.fixture(scope="module")
def real_pipeline() -> Any:
    return build(InPlace(), None)


def from_text(name: str, text: str) -> Any:
    return pipeline_arguments(every_type, [f"{name}={text}"], None)[name]


def from_yaml(name: str, text: str, folder: Path) -> Any:
    (folder / "parameters.yaml").write_text(f"{name}: {text}\n", encoding="utf-8")
    return pipeline_arguments(every_type, [], folder / "parameters.yaml")[name]


def same(one: Any, two: Any) -> bool:
    return type(one) is type(two) and one == two


# Values as text


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "", ""),
        ("text", "a=b=c", "a=b=c"),
        ("text", " spaces ", " spaces "),
        ("text", "007", "007"),
        ("text", "true", "true"),
        ("text", "[1]", "[1]"),
        ("text", "line\nbreak é", "line\nbreak é"),
        ("count", "12", 12),
        ("count", "-7", -7),
        ("count", "+7", 7),
        ("count", " 12 ", 12),
        ("count", "007", 7),
        ("rate", "0.25", 0.25),
        ("rate", "1e-3", 0.001),
        ("rate", "5", 5.0),
        ("rate", "-.5", -0.5),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "TRUE", True),
        ("flag", " true ", True),
        ("items", "", []),
        ("items", "accuracy>=0.9", ["accuracy>=0.9"]),
        ("items", "a, b ,c", ["a", "b", "c"]),
        ("items", '["a, b", "c"]', ["a, b", "c"]),
        ("items", " []", []),
        ("options", "{}", {}),
        ("options", '{"a": {"b": [1, 2.5, null, true]}}', {"a": {"b": [1, 2.5, None, True]}}),
        ("maybe", "given", "given"),
    ],
)
def test_a_value_as_text_becomes_a_value_of_its_type(name: str, text: str, value: Any) -> None:
    assert same(from_text(name, text), value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("count", ""),
        ("count", "1.0"),
        ("count", "1e3"),
        ("count", "1_000"),
        ("count", "0x10"),
        ("count", "true"),
        ("count", "12 apples"),
        ("count", "9" * 30),
        ("count", "٣"),
        ("rate", ""),
        ("rate", "fast"),
        ("rate", "0,5"),
        ("rate", "nan"),
        ("rate", "-inf"),
        ("rate", "1e999"),
        ("rate", "true"),
        ("rate", "1_0"),
        ("flag", ""),
        ("flag", "1"),
        ("flag", "None"),
        ("items", '["a", null]'),
        ("items", '["a"'),
        ("items", "[" * 100_000),
        ("options", ""),
        ("options", "k=1"),
        ("options", "[1]"),
        ("options", "7"),
        ("options", "{'k': 1}"),
        ("options", '{"k": NaN}'),
    ],
    ids=lambda text: str(text)[:20],
)
def test_a_text_of_the_wrong_type_is_refused_with_the_name_and_the_value(name: str, text: str) -> None:
    with pytest.raises(UserError) as caught:
        from_text(name, text)
    assert str(caught.value).startswith(f"{name} takes ")
    assert repr(text[:79])[:-1] in str(caught.value)


# Values in a file


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "plain words", "plain words"),
        ("text", "'007'", "007"),
        ("text", "''", ""),
        ("text", "7", "7"),
        ("text", "|\n  two\n  lines", "two\nlines\n"),
        ("count", "12", 12),
        ("count", "-7", -7),
        ("rate", "0.25", 0.25),
        ("rate", "5", 5.0),
        ("rate", "1.0e-3", 0.001),
        ("rate", "1e-3", 0.001),
        ("rate", "3E-4", 0.0003),
        ("flag", "true", True),
        ("flag", "no", False),
        ("items", "[]", []),
        ("items", "[a, 'b, c']", ["a", "b, c"]),
        ("items", "\n  - accuracy>=0.9\n  - log_loss<=0.3", ["accuracy>=0.9", "log_loss<=0.3"]),
        ("options", "{}", {}),
        ("options", "{a: {b: [1, 2.5, null, true]}}", {"a": {"b": [1, 2.5, None, True]}}),
    ],
)
def test_a_value_in_a_file_becomes_a_value_of_its_type(name: str, text: str, value: Any, tmp_path: Path) -> None:
    assert same(from_yaml(name, text, tmp_path), value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text", ""),
        ("text", "[[a]]"),
        ("text", "{a: 1}"),
        ("count", "1.0"),
        ("count", "true"),
        ("count", ""),
        ("rate", "true"),
        ("rate", ".nan"),
        ("rate", ".inf"),
        ("rate", "fast"),
        ("rate", "1" + "0" * 400),
        ("flag", "1"),
        ("items", "[[a]]"),
        ("items", "{a: b}"),
        ("options", "[1]"),
        ("options", "text"),
        ("options", "{when: 2024-01-31}"),
        ("options", "{k: .nan}"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_a_value_of_the_wrong_type_in_a_file_is_refused_with_its_name(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        from_yaml(name, text, tmp_path)
    assert str(caught.value).startswith(f"{name} takes ")


@pytest.mark.parametrize("text", ["1.10", "010", "0x1F", "1_000", "1e400", "12:30:45"])
def test_a_text_that_yaml_reads_as_a_number_is_not_changed_silently(text: str, tmp_path: Path) -> None:
    try:
        got = from_yaml("text", text, tmp_path)
    except UserError as error:
        assert "text" in str(error)  # noqa: PT017 (asking for quotes is right as well)
    else:
        assert got == text


@pytest.mark.parametrize("text", ["[NaN]", "[1, [1e999]]", "1, -Infinity"])
def test_a_list_of_anybody_has_finite_numbers(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"items takes a list; got '{text}'")):
        all_arguments({"items": Parameter("List", [], True, "")}, [f"items={text}"], None, of_anybody=True)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[1, 2.5, 1e-3, true, a]", [1, 2.5, 0.001, True, "a"]),
        ("['1', [2, 1e-3], {a: 3}, null]", ["1", [2, 0.001], {"a": 3}, None]),
    ],
)
def test_a_list_of_anybody_holds_in_a_file_what_it_holds_on_the_command_line(
    text: str, items: list[Any], tmp_path: Path
) -> None:
    """A step got '1' for 1, and ended with a traceback."""
    file, known = tmp_path / "given.yaml", {"items": Parameter("List", [], True, "")}
    file.write_text(f"items: {text}\n")
    for assignments, path in (([], file), ([f"items={json.dumps(items)}"], None)):
        assert all_arguments(known, assignments, path, of_anybody=True) == {"items": items}


def test_a_date_in_a_list_of_anybody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text("items: [2026-11-26, .nan]\n")
    with pytest.raises(UserError, match="items takes a list"):
        all_arguments({"items": Parameter("List", [], True, "")}, [], tmp_path / "given.yaml", of_anybody=True)


def test_a_number_in_a_list_is_its_text_as_written() -> None:
    assert from_text("items", '["--rate", 1e-5, "--steps", 10, 0.50]') == ["--rate", "1e-5", "--steps", "10", "0.50"]
    for text in ('["--flag", true]', "[NaN]", "[null]", "[[1]]"):
        with pytest.raises(UserError, match="items takes a list of texts"):
            from_text("items", text)


def test_what_stands_in_a_file_means_what_it_means_on_the_command_line(tmp_path: Path) -> None:
    for name, text in (("count", "'12'"), ("flag", "'true'"), ("flag", "no"), ("items", "a, b"), ("text", "no")):
        assert from_yaml(name, text, tmp_path) == from_text(name, text.strip("'"))
    assert from_yaml("items", "[1, 2]", tmp_path) == ["1", "2"]


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 10**30])
def test_a_whole_number_that_kfp_would_round_is_refused(value: int, tmp_path: Path) -> None:
    # KFP passes numbers as protobuf doubles.
    with pytest.raises(UserError, match="count"):
        from_text("count", str(value))
    with pytest.raises(UserError, match="count"):
        from_yaml("count", str(value), tmp_path)


# Files


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[a, b]", "not a mapping"),
        (b"just text", "not a mapping"),
        (b"a: [", "not YAML"),
        (b"a: b: c", "not YAML"),
        (b"a: 1\n---\nb: 2", "not YAML"),
        (b"\tcount: 3", "not YAML"),
        (b"\xff\xfe\xff", "not UTF-8"),
        (b"text: \x00", "not YAML"),
        (b"text: !!python/object/apply:os.getcwd []", "not YAML"),
        (b"? [a]\n: 1", "YAML"),
        (b"a: " + b"[" * 5000, ""),
    ],
    ids=lambda content: str(content)[:30],
)
def test_a_file_that_is_no_mapping_is_refused_and_names_the_file(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        pipeline_arguments(every_type, [], path)
    assert says in str(caught.value)
    assert "parameters.yaml" in str(caught.value) or "text" in str(caught.value)


@pytest.mark.parametrize("place", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused(place: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        pipeline_arguments(every_type, [], tmp_path / place)


@pytest.mark.parametrize("content", ["", "# nothing\n", "{}"])
def test_an_empty_file_changes_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "parameters.yaml").write_text(content)
    assert pipeline_arguments(every_type, [], tmp_path / "parameters.yaml") == DEFAULTS


def test_json_is_yaml_as_well(tmp_path: Path) -> None:
    given = {"text": "é", "count": 4, "rate": 0.001, "flag": True, "items": ["x"], "options": {"a": [1]}}
    (tmp_path / "parameters.json").write_text(json.dumps(given, indent=2))
    assert pipeline_arguments(every_type, [], tmp_path / "parameters.json") == {**DEFAULTS, **given}


# All together


def test_without_anything_given_all_defaults_are_used() -> None:
    assert pipeline_arguments(every_type, [], None) == DEFAULTS


def test_the_command_line_wins_over_the_file_and_the_last_of_two_wins_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text("count: 10\nrate: 0.1\n")
    got = pipeline_arguments(every_type, ["count=20", " text =x", "count=30", "text=x"], tmp_path / "p.yaml")
    assert got == {**DEFAULTS, "count": 30, "rate": 0.1, "text": "x"}
    told = "note: -p count is given twice, with '20' and '30'. The last one counts.\n"
    assert capsys.readouterr().err == told


def test_a_change_of_what_came_back_does_not_change_the_defaults() -> None:
    pipeline_arguments(every_type, [], None)["items"].append("c")
    assert pipeline_arguments(every_type, [], None) == DEFAULTS


def test_all_problems_of_file_and_command_line_are_listed_at_once(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("rat: 0.1\ncount: many\n7: x\n")
    with pytest.raises(UserError) as caught:
        pipeline_arguments(required, ["rate=fast", "sourc=x", "lonely", "=5"], tmp_path / "p.yaml")
    text = str(caught.value)
    assert text.startswith("8 things are wrong:")
    for part in (
        "There is no parameter 'rat'. Did you mean 'rate'?",
        "count takes a whole number (at most 2^53); got 'many'",
        "There is no parameter '7'. Valid: count, rate, source.",
        "rate takes a number; got 'fast'",
        "There is no parameter 'sourc'. Did you mean 'source'?",
        "-p lonely is not of the form key=value",
        "There is no parameter ''",
        "The parameter source must be given",
    ):
        assert part in text


def test_a_wrong_value_is_not_reported_as_missing_too() -> None:
    with pytest.raises(UserError) as caught:
        pipeline_arguments(required, ["source=x", "count=many"], None)
    assert str(caught.value) == "count takes a whole number (at most 2^53); got 'many'."


def test_a_long_wrong_value_is_cut_in_the_message() -> None:
    with pytest.raises(UserError) as caught:
        from_text("count", "x" * 10_000)
    assert len(str(caught.value)) < 200


# The real pipeline


def test_the_real_pipeline_takes_its_parameters_from_text_and_from_a_file(real_pipeline: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("learning_rate: 1e-3\ngates: [accuracy>=0.95, log_loss<=0.3]\nepochs: 2\n")
    got = pipeline_arguments(real_pipeline, ["source=photos", "max_steps=10"], tmp_path / "p.yaml")
    assert set(got) > set(real_pipeline.component_spec.inputs) - {"advanced"}, "each by its own name"
    assert same(got["learning_rate"], 0.001)
    assert same(got["epochs"], 2.0)
    assert same(got["max_steps"], 10)
    assert got["gates"] == ["accuracy>=0.95", "log_loss<=0.3"]
    assert got["source"] == "photos"


def test_the_real_pipeline_names_the_parameter_that_was_meant(real_pipeline: Any) -> None:
    with pytest.raises(UserError) as caught:
        pipeline_arguments(real_pipeline, ["global_batch=8", "learning-rate=1"], None)
    assert "global_batch_size" in str(caught.value)
    assert "'learning_rate'" in str(caught.value)


@pytest.mark.parametrize(
    "given", [["packing=false", "keep_last=2"], ['advanced={"packing": false, "keep_last": 2}'], ["advanced="], []]
)
def test_a_rare_parameter_is_given_by_its_own_name_or_in_advanced(real_pipeline: Any, given: list[str]) -> None:
    if given == ["advanced="]:
        with pytest.raises(UserError, match="advanced takes a mapping; got ''"):
            pipeline_arguments(real_pipeline, given, None)
        return
    got = pipeline_arguments(real_pipeline, given, None)
    assert "advanced" not in got
    assert (got["packing"], got["keep_last"]) == ((False, 2) if given else (True, 0))
    known = parameters_of_pipeline(real_pipeline)
    taken = as_taken(got, known, fields_of(real_pipeline.name, known))
    assert set(taken) == set(real_pipeline.component_spec.inputs)
    assert taken["advanced"] == ({"keep_last": 2, "packing": False} if given else {})


def test_a_later_value_wins_wherever_it_stands(real_pipeline: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("advanced: {seed: 5, weight_decay: 1.e-3, recipe: a.b:C}\nkeep_last: 4\n")
    got = pipeline_arguments(real_pipeline, ["seed=6", 'advanced={"keep_last": 9}'], tmp_path / "p.yaml")
    assert (got["seed"], got["keep_last"], got["weight_decay"], got["recipe"]) == (6, 9, 0.001, "a.b:C")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('advanced={"paking": false}', "There is no parameter 'paking'. Did you mean 'packing'?"),
        ('advanced={"batch_size": 8}', "Did you mean 'micro_batch_size' or 'global_batch_size' or"),
        ('advanced={"keep_last": 1.5}', "keep_last takes a whole number"),
        ('advanced={"packing": null}', "packing takes true or false"),
        ("advanced=[1]", 'advanced takes a mapping; got \'[1]\'. Write it as JSON, {"NAME": "value"}; a shell'),
    ],
)
def test_what_is_wrong_in_advanced_is_told_as_of_any_parameter(real_pipeline: Any, given: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        pipeline_arguments(real_pipeline, [given], None)
    assert message in str(caught.value)


def test_what_a_schedule_holds_stands_until_it_is_changed(real_pipeline: Any) -> None:
    known = parameters_of_pipeline(real_pipeline)
    fields = fields_of(real_pipeline.name, known)
    # As the service holds them, with a point in every number.
    before = {"epochs": 8.0, "image_size": 32.0, "advanced": {"keep_last": 2.0, "packing": False}}
    got = all_arguments(known, ["keep_last=0"], None, before, fields)
    assert repr((got["image_size"], got["keep_last"], got["epochs"])) == "(32, 0, 8.0)"
    assert as_taken(got, known, fields)["advanced"] == {"packing": False}


# Defaults that follow the task

TASK_DEFAULTS = {
    "text_classification": ("sample:docstrings", "bert-micro"),
    "causal_lm": ("sample:documentation", "gpt2-micro"),
}


@pytest.mark.parametrize("task", TASK_DEFAULTS)
def test_source_and_model_follow_the_task(real_pipeline: Any, task: str, tmp_path: Path) -> None:
    arguments = pipeline_arguments(real_pipeline, [f"task={task}"], None)
    assert (arguments["source"], arguments["model"]) == TASK_DEFAULTS[task]
    (tmp_path / "p.yaml").write_text(f"task: {task}\nmodel: organisation/own\n")
    arguments = pipeline_arguments(real_pipeline, ["source=texts.jsonl"], tmp_path / "p.yaml")
    assert (arguments["source"], arguments["model"]) == ("texts.jsonl", "organisation/own"), "what is given wins"


def test_a_default_that_a_file_has_of_its_own_stays() -> None:
    known = {"task": Parameter("String", "image_classification"), "source": Parameter("String", "gs://team/photos")}
    known["model"] = Parameter("String", "convnext-micro")
    arguments = all_arguments(known, ["task=causal_lm"], None)
    assert arguments == {"task": "causal_lm", "source": "gs://team/photos", "model": "gpt2-micro"}
    # In a file that is compiled for a task, that task's defaults are those that follow.
    known = {"task": Parameter("String", "causal_lm"), "model": Parameter("String", "gpt2-micro")}
    assert all_arguments(known, ["task=text_classification"], None)["model"] == "bert-micro"
    assert all_arguments(known, [], None)["model"] == "gpt2-micro"


def test_a_task_that_does_not_exist_changes_no_default(real_pipeline: Any) -> None:
    assert pipeline_arguments(real_pipeline, ["task=poetry"], None)["model"] == "convnext-micro"


def test_every_task_has_defaults_for_the_same_parameters_of_the_pipeline(real_pipeline: Any) -> None:
    names = set(defaults_of_task("image_classification"))
    assert names <= set(real_pipeline.component_spec.inputs)
    assert all(set(defaults_of_task(task)) == names for task in BUILT_IN)
    components = {name: real_pipeline.component_spec.inputs[name].default for name in names}
    assert components == defaults_of_task("image_classification")


def test_the_document_names_the_defaults_of_each_task() -> None:
    document = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for task in BUILT_IN:
        defaults = defaults_of_task(task)
        assert f"| `{task}` | `{defaults['source']}` | `{defaults['model']}` |" in document
