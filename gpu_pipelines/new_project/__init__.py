"""A new project, as written by `gpu-pipelines init`: settings, a pipeline, a task, tests, CI."""

from gpu_pipelines.new_project.project import files_of
from gpu_pipelines.new_project.request import NewProject
from gpu_pipelines.new_project.writing import write_project

__all__ = ["NewProject", "files_of", "write_project"]
