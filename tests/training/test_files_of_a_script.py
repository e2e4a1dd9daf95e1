"""What a training script consists of: where one of its files has changed, it is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_pipelines.targets.local.runner.digests import digest_of_script
from gpu_pipelines.training.script.files import files_of_script
from gpu_pipelines.training.script.settings import ScriptSettings

FILES = {
    "project/train.py": "import json\nimport torch\nfrom mine.loop import fit\nimport shared.text, spaces.deep.one\n",
    "project/beside.py": "import later\n",
    "project/broken.py": "def (\n",
    "project/mine/__init__.py": "",
    "project/mine/loop.py": "from . import step\nimport gpu_pipelines.errors\n",
    "project/mine/step.py": "import importlib\nimportlib.import_module('mine.models.small')\n",
    "project/mine/models/small.py": "",
    "project/later/__init__.py": "",
    "project/spaces/deep/one.py": "",
    "project/unused/other.py": "",
    "project/.venv/lib/some.py": "",
    "project/of_others.py": "import of_the_user, of_debian\n",
    "home/lib/python3/site-packages/of_the_user/__init__.py": "",
    "usr/lib/python3/dist-packages/of_debian.py": "",
    "elsewhere/shared/__init__.py": "",
    "elsewhere/shared/text.py": "",
}
INSTALLED = {"home/lib/python3/site-packages/of_the_user/__init__.py", "usr/lib/python3/dist-packages/of_debian.py"}
LEFT_OUT = {"project/unused/other.py", "project/.venv/lib/some.py", *INSTALLED}


def test_it_is_all_that_the_script_imports_and_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for folder in ("elsewhere", "home/lib/python3/site-packages", "usr/lib/python3/dist-packages"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    script = tmp_path / "project" / "train.py"
    found = {file.relative_to(tmp_path.resolve()).as_posix() for file in files_of_script(script)}
    assert found == FILES.keys() - LEFT_OUT
    digests = [digest_of_script(ScriptSettings(script=str(script)))]
    for name in ("project/mine/models/small.py", "elsewhere/shared/text.py", "project/unused/other.py"):
        (tmp_path / name).write_text("CHANGED = True\n")
        digests.append(digest_of_script(ScriptSettings(script=str(script))))
    assert len(set(digests)) == 3
    assert {len(each) for each in digests} == {64}, "an environment has no room for one of each file"
    assert digests[2] == digests[3], "no part of it"
