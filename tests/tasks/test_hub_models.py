"""A model of the hub is had in the revision that its name has: weights, tokenizer, preprocessor, adapters' base."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import transformers
from hub_server import printed_beside_hub
from pair_models import pretrained

from gpu_pipelines.tasks.model_places import hub_id, is_pretrained, loaded_from, may_be_pretrained
from gpu_pipelines.tasks.model_sizes import parameters_of_model

LOAD = """
import json, pathlib, sys, tempfile, torch, transformers
from gpu_pipelines.tasks.image_preprocessor import geometry_for
from gpu_pipelines.tasks.pretrained import from_pretrained
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.text_encoding import TextEncoder
from gpu_pipelines.tasks.text_recipe import require_known_tokens
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
def loaded(name):
    return from_pretrained(transformers.AutoModelForSequenceClassification, name, (), lambda *_: False)
model = loaded(sys.argv[1])
with torch.device("meta"):
    size = loaded(sys.argv[1]).config.vocab_size
whole = model.get_input_embeddings().weight.double().sum().item()
folder = pathlib.Path(tempfile.mkdtemp())
TextEncoder.load(sys.argv[1]).save(folder, 64)
tokens = transformers.AutoTokenizer.from_pretrained(folder)("new words")["input_ids"]
try:
    TextEncoder.load("owner/bert").save(folder, 64)
    require_known_tokens(sys.argv[1], TextTokenizer.read(folder))
except UserError as error:
    print(error.problem)
print(json.dumps([size, whole, tokens, str(geometry_for(sys.argv[1], "RGB"))]))
"""


def test_everything_of_a_model_is_of_its_revision(tmp_path: Path) -> None:
    for revision, texts, size in (("main", ["other texts"], 24), ("v1", ["new words"], 16)):
        folder = pretrained("bert", texts, tmp_path / "owner/bert" / revision)
        transformers.ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(folder)
    printed = printed_beside_hub(tmp_path, LOAD, "owner/bert@v1")
    vocabulary, weights, tokens, geometry = json.loads(printed.splitlines()[-1])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert vocabulary == model.config.vocab_size
    assert weights == pytest.approx(model.get_input_embeddings().weight.double().sum().item())
    assert tokens == transformers.AutoTokenizer.from_pretrained(folder)("new words")["input_ids"]
    assert "16" in geometry
    commit = hashlib.sha1(str(folder).encode(), usedforsecurity=False).hexdigest()
    assert f"the weights are those of owner/bert@{commit}\n" in printed
    assert "The model 'owner/bert@v1' has another tokenizer than the dataset: " in printed


@pytest.mark.parametrize("name", ["owner/model-7b@v1", "owner/model-7b@refs/pr/12", "owner/model-7b@0123abc"])
def test_a_revision_is_no_part_of_the_id(name: str) -> None:
    assert may_be_pretrained(name)
    assert is_pretrained(name)
    assert loaded_from(name) == {
        "pretrained_model_name_or_path": "owner/model-7b",
        "revision": name.partition("@")[2],
    }
    assert hub_id(name) == "owner/model-7b"
    assert parameters_of_model(name) == 7e9


def test_a_folder_with_such_a_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner/model@v1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert loaded_from("owner/model@v1") == {"pretrained_model_name_or_path": "owner/model@v1"}
    assert hub_id("owner/model@v1") == hub_id("convnext-micro") == hub_id("gs://bucket/model") == ""
    assert loaded_from("./model@v1") == {"pretrained_model_name_or_path": "model@v1"}
    assert loaded_from("gs://bucket/model@v1") == {"pretrained_model_name_or_path": "gs://bucket/model@v1"}
