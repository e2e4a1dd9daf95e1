"""Text that a small Llama writes: as transformers writes it, scored by row, compared with the champion, kept."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluations import settings_in, write_checkpoint
from judges import judging

from gpu_pipelines.artifacts.checkpoint import write_configuration
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import GENERATED, Evaluation
from gpu_pipelines.artifacts.integrity import model_files
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.generation.port import Written
from gpu_pipelines.evaluation.generation.rows import UNIT, sampled, units_of
from gpu_pipelines.evaluation.models.loading import Loaded
from gpu_pipelines.evaluation.report import write_report
from gpu_pipelines.evaluation.scorers.recipe import RecipeScorer
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.registry.upload import UploadSettings, upload_model
from gpu_pipelines.tasks.building import build_model
from gpu_pipelines.tasks.causal_lm.answering import Answering
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.causal_lm.writing import JoinedWriter, Text
from gpu_pipelines.tasks.checkpoint_state import load_weights

COLORS = {
    "sky": "deep blue",
    "grass": "light green",
    "snow": "white",
    "coal": "black as night",
    "rose": "red",
    "sun": "bright yellow",
}
STEPS = 20
FIRST, LAST = f"step-{STEPS // 2:08}", f"step-{STEPS:08}"
NEW = 8


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of questions with answers, and a training on it whose last checkpoint knows some of them."""
    folder = tmp_path_factory.mktemp("colors")
    draw = random.Random(0)
    things = [draw.choice(sorted(COLORS)) for _ in range(240)]
    rows = [{"prompt": f"{n}: the color of the {it} is", "completion": f" {COLORS[it]}"} for n, it in enumerate(things)]
    (folder / "colors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare = PrepareSettings(
        task="causal_lm",
        source=str(folder / "colors.jsonl"),
        sequence_length=64,
        vocabulary_size=300,
        val_fraction=0.2,
        test_fraction=0.2,
    )
    prepare_data(prepare, folder / "dataset")
    train(Dataset(folder / "dataset"), folder / "checkpoints")
    return folder


def train(dataset: Dataset, directory: Path) -> None:
    """Two checkpoints of a Llama, of which the first one knows no answer and the last one some."""
    settings = {"model": "llama-micro", "seed": 0}
    directory.mkdir()
    write_configuration(directory, {"task": "causal_lm", "settings": settings, "devices": {}})
    recipe = CausalLanguageModel.for_dataset(dataset)
    torch.manual_seed(0)
    model = build_model(recipe, settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    rows = dataset.split("train")
    for step in range(1, STEPS + 1):
        batch = recipe.batch(rows.take(np.random.default_rng(step).integers(0, len(rows), 8)), torch.device("cpu"))
        optimizer.zero_grad()
        recipe.loss(model, batch).backward()
        optimizer.step()
        if step in (STEPS // 2, STEPS):
            write_checkpoint(directory, step, model, dataset)


def evaluated(colors: Path, folder: Path, checkpoints: Path | None = None, **given: Any) -> Evaluation:
    settings = settings_in(folder, **{"generate": ["exact_match", "rouge_l"], "max_new_tokens": NEW, **given})
    return evaluate_checkpoints(settings, colors / "dataset", checkpoints or colors / "checkpoints", folder / "best")


def lines_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "best" / GENERATED).read_text(encoding="utf-8").splitlines()]


def test_text_is_what_transformers_writes_for_each_row_alone(colors: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    evaluation = evaluated(colors, tmp_path)
    assert evaluation.best == LAST
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "best").eval()
    task = Answering(Dataset(colors / "dataset"))
    lines = lines_in(tmp_path)
    assert len(lines) == len(task.pairs("test")) > UNIT
    for line, pair in zip(lines, task.pairs("test"), strict=True):
        prompt = torch.from_numpy(pair.prompt.astype(np.int64))[None]
        with torch.inference_mode():
            found = model.generate(prompt, max_new_tokens=NEW, do_sample=False, pad_token_id=0)[0, prompt.shape[1] :]
        assert line["text"] == task.text(found.tolist())
        assert line["prompt"].endswith(" is")
        assert line["reference"].strip() in COLORS.values()
        assert line["ended"] == (len(found) < NEW or int(found[-1]) == model.generation_config.eos_token_id)
    assert any(line["ended"] for line in lines)
    assert any(not line["ended"] for line in lines)
    assert evaluation.texts is not None
    assert evaluation.texts["cut"] == sum(not line["ended"] for line in lines)
    shown = {kind: [e for e in evaluation.texts["examples"] if e["kind"] == kind] for kind in ("worst", "best")}
    assert all(example["scores"]["exact_match"] == 1 for example in shown["best"])
    assert all(example["scores"]["rouge_l"] < 1 for example in shown["worst"])
    assert len(shown["best"]) == 3
    assert shown["worst"]


def test_whoever_writes_every_token_of_the_reference_is_right(colors: Path, tmp_path: Path) -> None:
    metrics = evaluated(colors, tmp_path).test["metrics"]
    assert 0 < metrics["exact_match"]["value"] < 1
    assert metrics["exact_match"] == metrics["completion_accuracy"]
    exact = [line["scores"]["exact_match"] for line in lines_in(tmp_path)]
    assert np.mean(exact) == pytest.approx(metrics["exact_match"]["value"])
    assert metrics["rouge_l"]["value"] >= metrics["exact_match"]["value"]


def test_answers_are_the_same_where_the_memory_is_for_few_texts_at_once(
    colors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset(colors / "dataset")
    recipe, task = CausalLanguageModel.for_dataset(dataset), Answering(dataset)
    model = build_model(recipe, {"model": "llama-micro", "seed": 0}).eval()
    load_weights(model, colors / "checkpoints" / LAST)
    loaded, prompts = Loaded(recipe, model, []), [pair.prompt for pair in task.pairs("test")[:10]]
    with torch.inference_mode():
        wanted = task.write(loaded, prompts, NEW)
    write, at_once = JoinedWriter.write, list[int]()

    def where_little_is_free(self: JoinedWriter, texts: list[Text], others_wait: Any) -> None:
        at_once.append(len(texts))
        if len(texts) > most or (len(texts) > 3 and any(text.cache for text in texts)):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        write(self, texts, others_wait)

    monkeypatch.setattr(JoinedWriter, "write", where_little_is_free)
    most = 6
    with torch.inference_mode():
        assert task.write(loaded, prompts, NEW) == wanted
    assert at_once[:2] == [10, 5], "what is too much is halved"
    assert sum(number > 3 for number in at_once) == 3, "and not tried again"
    most = 0
    with pytest.raises(torch.OutOfMemoryError), torch.inference_mode():
        task.write(loaded, prompts, NEW)


@pytest.mark.slow
def test_several_processes_write_what_one_does(colors: Path, tmp_path: Path) -> None:
    from gpu_pipelines.evaluation.generation.text_scoring import TextScoring

    dataset = Dataset(colors / "dataset")
    settings = settings_in(tmp_path, generate=["exact_match"], max_new_tokens=NEW)
    found = []
    for processes in (1, 2):
        texts = TextScoring(settings.texts, dataset)
        assert len(texts.units("test")) == 2
        scorer = RecipeScorer(dataset, colors / "checkpoints", processes=processes, texts=texts)
        scores: Any = scorer.on_test(scorer.candidates[-1])
        scorer.close()
        found.append([(answer.text, answer.ended) for answer in scores.answers])
    assert found[0] == found[1]


def test_a_checkpoint_is_chosen_gated_and_compared_by_what_it_writes(colors: Path, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    for name in (FIRST, "training.json"):
        copy = shutil.copytree if (colors / "checkpoints" / name).is_dir() else shutil.copy
        copy(colors / "checkpoints" / name, tmp_path / "first" / name)  # type: ignore[operator]
    first = evaluated(colors, tmp_path, tmp_path / "first")
    upload_model(UploadSettings(settings_in(tmp_path).registry, "mine", smoke_test=False), tmp_path / "best", True)
    champion_wrote = [line["text"] for line in lines_in(tmp_path)]
    shutil.rmtree(tmp_path / "best")
    gates = ["exact_match>=0.1", "exact_match better_than_champion at 95%", "rouge_l>=0.99"]
    found = evaluated(colors, tmp_path, gates=gates, select_by="exact_match")
    assert found.best == LAST
    assert [scored["val"]["exact_match"] is not None for scored in found.checkpoints] == [True, True]
    assert all("exact_match" not in scored["val"] for scored in first.checkpoints)
    better = {gate["gate"]: gate for gate in found.gates}
    assert better["exact_match>=0.1"]["passed"]
    assert better["better_than_champion in exact_match at 95%"]["passed"]
    assert "on the same" in better["better_than_champion in exact_match at 95%"]["why"]
    assert not better["rouge_l>=0.99"]["passed"]
    assert found.champion is not None
    assert found.champion["differences"]["exact_match"]["low"] > 0
    lines = lines_in(tmp_path)
    assert [line["champion"]["text"] for line in lines] == champion_wrote
    assert champion_wrote != [line["text"] for line in lines]
    write_report(found, colors / "dataset", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for said in ("The worst answers", "exact_match of written text on val", "The champion answered the same prompts"):
        assert said in page, said


def test_what_was_written_is_no_part_of_the_model(colors: Path, tmp_path: Path) -> None:
    evaluated(colors, tmp_path)
    files = {path.name: "0" for path in (tmp_path / "best").iterdir()}
    assert GENERATED in files
    assert GENERATED not in model_files(files)


def test_a_part_of_the_rows_is_the_same_for_all_and_said(colors: Path, tmp_path: Path) -> None:
    found = evaluated(colors, tmp_path, generate_rows=20)
    lines = lines_in(tmp_path)
    assert len(lines) == 20
    assert found.texts is not None
    assert (found.texts["rows"], found.texts["of"]) == (20, found.test["rows"])
    pairs = Answering(Dataset(colors / "dataset")).pairs("test")
    kept = sampled(pairs, 20)
    assert [line["reference"].strip() for line in lines] == [
        Answering(Dataset(colors / "dataset")).text(pair.reference.tolist()).strip() for pair in kept
    ]
    # Without some of the others, those that are left are still chosen.
    fewer = [pair for pair in pairs if pair in kept or pair.number % 2]
    assert {pair.number for pair in sampled(fewer, 20)} == {pair.number for pair in kept}
    assert sampled(pairs, 0) == pairs
    assert sorted(np.concatenate(units_of(pairs))) == list(range(len(pairs)))
    write_report(found, colors / "dataset", tmp_path / "report.html")
    assert f"20 of the {found.test['rows']} prompts of test" in (tmp_path / "report.html").read_text()


def test_a_function_of_the_user_scores_prompt_answer_and_reference(colors: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def same_length(prompt, answer, reference):\n"
        "    assert ' is' in prompt\n"
        "    return len(answer) == len(reference)\n"
        "def says(prompt, answer, reference):\n    return 'yes'\n"
        "def fails(prompt, answer, reference):\n    return 1 / 0\n"
    )
    file = tmp_path / "mine.py"
    found = evaluated(colors, tmp_path, generate=["exact_match", f"{file}:same_length"], gates=["same_length>=0"])
    lines = lines_in(tmp_path)
    expected = [float(len(line["text"]) == len(line["reference"])) for line in lines]
    assert [line["scores"]["same_length"] for line in lines] == expected
    assert found.test["metrics"]["same_length"]["value"] == pytest.approx(np.mean(expected))
    assert 0 < np.mean(expected) < 1
    with pytest.raises(UserError, match="says returned 'yes' for the answer to"):
        evaluated(colors, tmp_path, generate=[f"{file}:says"])
    with pytest.raises(UserError, match="division by zero") as caught:
        evaluated(colors, tmp_path, generate=[f"{file}:fails"])
    assert "return 1 / 0" in caught.value.remedy


def test_a_judge_is_asked_about_both_models_and_its_key_is_nowhere(
    colors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-of-this-test"
    monkeypatch.setenv("JUDGE_KEY", key)
    evaluated(colors, tmp_path)
    upload_model(UploadSettings(settings_in(tmp_path).registry, "mine", smoke_test=False), tmp_path / "best", True)
    shutil.rmtree(tmp_path / "best")

    def answer(body: dict[str, Any]) -> Any:
        question = body["messages"][0]["content"]
        if "\n<bos>13: " in question:
            return 400, {"error": {"message": f"refused, {key}"}}
        return "As good as can be.\nscore: 10" if "the sky" in question else "score: 2.5"

    with judging() as (address, answers):
        answers.of = answer
        judge = {"judge": address, "judge_model": "small", "judge_key": "JUDGE_KEY"}
        gates = ["judge>=3", "judge better_than_champion"]
        found = evaluated(
            colors, tmp_path, generate=["exact_match", "judge"], gates=gates, select_by="exact_match", **judge
        )
        assert all("judge" not in scored["val"] for scored in found.checkpoints)
    lines = lines_in(tmp_path)
    unjudged = [line for line in lines if line["scores"]["judge"] is None]
    assert [line["prompt"].startswith("<bos>13: ") for line in unjudged] == [True]
    assert unjudged[0]["judge"]["failure"] == "HTTP status 400: refused, (key)"
    expected = [10.0 if "the sky" in line["prompt"] else 2.5 for line in lines if line not in unjudged]
    assert found.test["metrics"]["judge"]["value"] == pytest.approx(np.mean(expected))
    assert all(line["judge"]["said"].endswith("score: 10") for line in lines if line["scores"]["judge"] == 10)
    assert found.texts is not None
    assert (found.texts["judge"]["failed"], found.texts["judge"]["model"]) == (1, "small")
    # The champion is the same model: what it wrote had been judged already.
    assert len(answers.seen) == len(lines)
    assert [gate["passed"] for gate in found.gates[:2]] == [bool(np.mean(expected) >= 3), False]
    write_report(found, colors / "dataset", tmp_path / "report.html")
    assert "It gave no score for 1 of" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "warning: the judge gave no score for 1 of" in capsys.readouterr().out
    for file in (*(tmp_path / "best").glob("*.json*"), tmp_path / "report.html"):
        assert key not in file.read_text(encoding="utf-8"), file


#: The part of vLLM's interface that is used, as its documentation has it; transformers does the work.
VLLM = """
from types import SimpleNamespace
import torch
from transformers import AutoModelForCausalLM

class SamplingParams:
    def __init__(self, *, temperature, max_tokens, stop_token_ids, **rules):
        assert temperature == 0
        assert rules == {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        self.most, self.ends = max_tokens, stop_token_ids

class LLM:
    def __init__(self, *, model, tokenizer, max_model_len, seed):
        self.model = AutoModelForCausalLM.from_pretrained(model, local_files_only=True)
        self.longest = max_model_len

    def get_default_sampling_params(self):
        return SimpleNamespace(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)

    def generate(self, prompts, parameters, *, use_tqdm):
        return [SimpleNamespace(outputs=[self.written(*each)]) for each in zip(prompts, parameters, strict=True)]

    def written(self, prompt, asked):
        tokens = torch.tensor([prompt["prompt_token_ids"]])
        assert tokens.shape[1] + asked.most <= self.longest
        found = self.model.generate(
            tokens, max_new_tokens=asked.most, do_sample=False, eos_token_id=asked.ends, pad_token_id=0
        )[0, tokens.shape[1]:].tolist()
        return SimpleNamespace(token_ids=found, finish_reason="stop" if found[-1] in asked.ends else "length")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In place of vLLM, which itself needs a GPU."""
    assert "not installed" in EvaluationSettings(generate=["rouge_l"], generate_with="vllm").problems_here()[0]
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "vllm.py").write_text(VLLM)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    yield tmp_path / "packages" / "vllm.py"
    # The next test imports its own.
    sys.modules.pop("vllm", None)


def test_vllm_is_given_prompts_and_rules_and_its_answers_are_read(colors: Path, tmp_path: Path, stand_in: Path) -> None:
    evaluated(colors, tmp_path)
    task = Answering(Dataset(colors / "dataset"))
    pairs = task.pairs("test")
    # The last prompt fills the model, so that nothing can be written.
    prompts = [*(pair.prompt for pair in pairs), np.ones(64, dtype=np.int32)]
    *found, last = task.write_with_vllm(tmp_path / "best", prompts, NEW)
    assert [(task.text(each.tokens), each.ended) for each in found] == [
        (line["text"], line["ended"]) for line in lines_in(tmp_path)
    ]
    assert last == Written((), False)


@pytest.mark.slow
def test_vllm_writes_in_a_process_of_its_own(colors: Path, tmp_path: Path, stand_in: Path) -> None:
    evaluated(colors, tmp_path)
    lines = lines_in(tmp_path)
    shutil.rmtree(tmp_path / "best")
    found = evaluated(colors, tmp_path, generate_with="vllm")
    assert lines_in(tmp_path) == lines
    assert found.texts is not None
    assert found.texts["written_by"] == "vllm"
    stand_in.write_text("class LLM:\n    pass\nclass SamplingParams:\n    pass\n")
    with pytest.raises(UserError, match="vLLM cannot write with step-00000020: TypeError") as caught:
        evaluated(colors, tmp_path, generate_with="vllm")
    assert "generate_with=transformers" in caught.value.remedy


def test_models_from_elsewhere_and_rules_of_their_own_are_written_with_as_they_are(
    colors: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    evaluated(colors, tmp_path)
    folder = tmp_path / "elsewhere" / "checkpoint-5"
    shutil.copytree(tmp_path / "best", folder)
    rules = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**rules, "repetition_penalty": 5.0}))
    plain = [line["text"] for line in lines_in(tmp_path)]
    shutil.rmtree(tmp_path / "best")
    evaluated(colors, tmp_path, tmp_path / "elsewhere", generate_rows=12)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    task = Answering(Dataset(colors / "dataset"))
    lines = lines_in(tmp_path)
    for line, pair in zip(lines, sampled(task.pairs("test"), 12), strict=True):
        prompt = torch.from_numpy(pair.prompt.astype(np.int64))[None]
        with torch.inference_mode():
            found = model.generate(prompt, max_new_tokens=NEW, do_sample=False, pad_token_id=0)[0, prompt.shape[1] :]
        assert line["text"] == task.text(found.tolist())
    assert {line["text"] for line in lines} - set(plain)


def test_checkpoints_of_several_trainings_are_ranked_by_what_they_write(colors: Path, tmp_path: Path) -> None:
    both = {"one": colors / "checkpoints", "two": colors / "checkpoints"}
    settings = settings_in(tmp_path, generate=["rouge_l"], select_by="rouge_l", max_new_tokens=NEW, generate_rows=9)
    found = evaluate_checkpoints(settings, colors / "dataset", both, tmp_path / "best")
    assert found.best == f"one/{LAST}"
    values = {scored["name"]: scored["val"]["rouge_l"] for scored in found.checkpoints}
    assert values[f"one/{LAST}"] == values[f"two/{LAST}"] > values[f"one/{FIRST}"]
    assert len(lines_in(tmp_path)) == 9


def test_a_prompt_that_leaves_little_room_is_answered_within_it(colors: Path, tmp_path: Path) -> None:
    evaluated(colors, tmp_path, max_new_tokens=500)
    task = Answering(Dataset(colors / "dataset"))
    for line, pair in zip(lines_in(tmp_path), task.pairs("test"), strict=True):
        assert line["ended"] or line["tokens"] == 64 - len(pair.prompt)


def test_the_last_answer_of_a_chat_is_the_reference(tmp_path: Path) -> None:
    from gpu_pipelines.tasks.text_encoding import TextEncoder

    encoder = TextEncoder.train(["user assistant", "hi there", "and then?", "yes, 3", "no"] * 20, 400, ends=True)
    tokenizer: Any = encoder._tokenizer
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    rows = [
        [
            {"role": "user", "content": f"hi {n}"},
            {"role": "assistant", "content": "no"},
            {"role": "user", "content": "and then?"},
            {"role": "assistant", "content": f"yes, {n}"},
        ]
        for n in range(40)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    settings = PrepareSettings(
        task="causal_lm",
        source=str(tmp_path / "chats.jsonl"),
        tokenizer=str(tmp_path / "tokenizer"),
        sequence_length=128,
        test_fraction=0.4,
    )
    prepare_data(settings, tmp_path / "dataset")
    task = Answering(Dataset(tmp_path / "dataset"))
    pairs = task.pairs("test")
    assert len(pairs) > 5
    for pair in pairs:
        reference = task.text(pair.reference.tolist(), whole=True)
        number = reference.removeprefix("yes, ")
        assert task.text(pair.prompt.tolist(), whole=True) == (
            f"<|im_start|>user\nhi {number}<|im_end|>\n<|im_start|>assistant\nno<|im_end|>\n"
            "<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\n"
        )
    assert task._ends == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
