"""Pages of the Google Cloud console, from the full names of resources.

Pages of Vertex AI have the addresses that google-cloud-aiplatform prints itself (`_dashboard_uri` of its classes).
"""

from __future__ import annotations

_CONSOLE = "https://console.cloud.google.com"


def run_page(name: str) -> str:
    """The page of a run, from `projects/P/locations/L/pipelineJobs/J`."""
    project, location, job = _parts(name)
    return f"{_CONSOLE}/vertex-ai/locations/{location}/pipelines/runs/{job}?project={project}"


def custom_job_page(name: str) -> str:
    """The page of a custom job, from `projects/P/locations/L/customJobs/N`."""
    project, location, job = _parts(name)
    return f"{_CONSOLE}/agent-platform/locations/{location}/training/{job}?project={project}"


def schedule_page(name: str) -> str:
    """The page of a schedule, from `projects/P/locations/L/schedules/N`."""
    project, location, schedule = _parts(name)
    return f"{_CONSOLE}/vertex-ai/locations/{location}/pipelines/schedules/{schedule}?project={project}"


def repositories_page(project: str) -> str:
    """The page of a project's repositories in Artifact Registry."""
    return f"{_CONSOLE}/artifacts?project={project}"


def _parts(name: str) -> tuple[str, str, str]:
    """Project, location and the last part of a resource's full name."""
    parts = name.split("/")
    return parts[1], parts[3], parts[5]
