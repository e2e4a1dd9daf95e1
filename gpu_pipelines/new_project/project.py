"""The files of a new project, by their paths in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines import __version__
from gpu_pipelines.component_interface.parameter import KFP_TYPES
from gpu_pipelines.new_project.compiling import compiled_text
from gpu_pipelines.new_project.installed import folder_of_programs, is_of_this_machine, packages_of, pins, requirement
from gpu_pipelines.new_project.request import NewProject
from gpu_pipelines.terminal import wrapped

#: Templates by the paths of the files that they become.
_FILES = {
    "README.md": "README.md",
    "Makefile": "Makefile",
    "gpu-pipelines.yaml": "gpu-pipelines.yaml",
    "pipeline.py": "pipeline.py",
    "{package}/__init__.py": "package.py",
    "{package}/task.py": "task.py",
    "{package}/recipe.py": "recipe.py",
    "tests/conftest.py": "conftest.py",
    "tests/test_pipeline.py": "test_pipeline.py",
    "pyproject.toml": "pyproject.toml",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore",
    ".github/workflows/check.yaml": "check.yaml",
}
#: For remote targets, which find the package of the project only in the image of the steps.
_FILES_OF_AN_IMAGE = {"Dockerfile": "Dockerfile", ".dockerignore": "dockerignore"}
#: For targets with a repository of pipelines, to which they are delivered.
_FILES_OF_A_STORE = {
    ".github/workflows/deliver.yaml": "deliver.yaml",
    "cloudbuild.yaml": "cloudbuild.yaml",
}
_WIDTH = 112
#: Only on the machine where the project was written, not in its repository.
LOCAL_MAKE = "local.mk"
CONSTRAINTS = "constraints.txt"
#: The settings of a project, with an example of each, in the order of the file.
SETTINGS = {
    "project": "my-project",
    "region": "us-central1",
    "pipeline_root": "gs://my-bucket/runs",
    "repository": "https://us-central1-kfp.pkg.dev/my-project/gpu-pipelines-pipelines",
    "service_account": "gpu-pipelines-runs@my-project.iam.gserviceaccount.com",
    "kubeflow_host": "https://my-cluster.example.com/pipeline",
}


def files_of(project: NewProject) -> dict[str, str]:
    """The texts of the files of a project, by their paths in it.

    Raises:
        UserError: lists what is wrong with the request.
    """
    project.require_possible()
    facts = _facts(project)
    names = dict(_FILES)
    if facts["has_image"]:
        names |= _FILES_OF_AN_IMAGE
    if facts["has_store"]:
        names |= _FILES_OF_A_STORE
    found = {path.format(package=project.package): _filled(name, facts) for path, name in names.items()}
    found[CONSTRAINTS] = "\n".join(
        [f"# What gpu-pipelines {__version__} was tested with here.", *pins(packages_in(project)), ""]
    )
    if programs := folder_of_programs():
        found[LOCAL_MAKE] = _filled("local.mk", {**facts, "programs": programs})
    place, target = facts["compiled"], facts["compiled_for"]
    found[place] = compiled_text(found, project.package, target)
    return found


def packages_in(project: NewProject) -> tuple[str, ...]:
    """The packages that provide the task and the target of a project, besides this one."""
    from gpu_pipelines.targets.target import targets

    return packages_of([type(project.base), targets()[project.target]])


def _facts(project: NewProject) -> dict[str, Any]:
    """The values for the templates."""
    from gpu_pipelines.targets.target import targets

    # Named, not imported: a recipe brings PyTorch.
    recipe_module, _, recipe = project.base.recipe.partition(":")
    has_store = hasattr(targets()[project.target], "publish")
    # Without a repository, nobody sends a file; the one for this machine is compiled, to be compared.
    compiled_for = project.target if has_store else "local"
    brought = [requirement(name, "") for name in packages_in(project)]
    settings = {**{name: project.settings.get(name) for name in SETTINGS}, **project.settings}
    return {
        "project": project,
        "name": project.title,
        "package": project.package,
        "base": type(project.base),
        "recipe_module": recipe_module,
        "recipe": recipe,
        "parameters": _parameters(project),
        "of_sample": project.of_sample,
        "function": project.function,
        # Accounts have names of 6 to 30 characters.
        "account": f"{project.title[:20].rstrip('-')}-delivery",
        "gates": _tuple(project.base.gates),
        "metric": next(iter(project.base.metrics)),
        "steps": _by_step(project),
        "followed": project.followed,
        "target": project.target,
        "has_store": has_store,
        "has_image": project.target != "local",
        "has_clock": project.target == "vertex",
        "settings": settings,
        "examples": SETTINGS,
        "requirements": [requirement(), *brought],
        "brought": brought,
        "is_of_this_machine": is_of_this_machine(requirement()),
        "version": __version__,
        "constraints": CONSTRAINTS,
        "compiled": f"compiled/{compiled_for}.yaml",
        "compiled_for": compiled_for,
    }


def _parameters(project: NewProject) -> list[dict[str, str]]:
    """The arguments of the pipeline's function in Python: name, type, default and description."""
    types = {kfp: python.__name__ for python, kfp in KFP_TYPES.items()}
    return [
        {"name": name, "type": types[each.type], "default": _literal(value), "text": _said(name, each.text)}
        for name, (_, each, value) in project.parameters.items()
    ]


def _said(name: str, text: str) -> str:
    """The description of a parameter, in lines that fit below `Args:`."""
    sentence = f"{text.partition('. ')[0].removesuffix('.')}."
    return wrapped(f"{name}: {sentence}", " " * 8, " " * 12, _WIDTH).lstrip()


def _by_step(project: NewProject) -> Mapping[str, list[str]]:
    """The names of each step's parameters."""
    found: dict[str, list[str]] = {}
    for name, (steps, _, _) in project.parameters.items():
        for step in steps:
            found.setdefault(step, []).append(name)
    return found


def _literal(value: Any) -> str:
    """A value in the form of Python's formatters: with double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else repr(value)


def _tuple(values: Sequence[str]) -> str:
    return f"({', '.join(map(_literal, values))}{',' if len(values) == 1 else ''})"


def _filled(name: str, facts: Mapping[str, Any]) -> str:
    """A template filled in with the values of the project."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Not jinja's default marks, which GitHub's workflows use themselves.
    environment = Environment(
        loader=PackageLoader("gpu_pipelines.new_project"),
        variable_start_string="{=",
        variable_end_string="=}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 (these are not pages)
    )
    environment.filters["literal"] = _literal
    return environment.get_template(f"{name}.j2").render(facts)
