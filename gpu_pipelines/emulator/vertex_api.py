"""A server that runs: what it knows, how it is told to fail, and how clients find it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines import __version__
from gpu_pipelines.emulator.bucket_places import BucketPlaces
from gpu_pipelines.emulator.certificates import Certificates, certificates_in
from gpu_pipelines.emulator.faults import MESSAGES, Fault, Faults
from gpu_pipelines.emulator.permissions import write_key
from gpu_pipelines.emulator.pipeline_jobs import ENDED
from gpu_pipelines.emulator.services import BUCKET, NUMBER, PROJECT, REGION, REPOSITORY, State
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.storage import Storage

if TYPE_CHECKING:
    from gpu_pipelines.emulator.bigquery_service import BigQuery

_LOOK_S = 0.05
#: The token that Terraform's provider is given.
TOKEN = "emulator"  # noqa: S105
_OVERRIDDEN = (
    "AIPLATFORM",
    "ARTIFACTREGISTRY",
    "CLOUDQUOTAS",
    "CLOUDRESOURCEMANAGER",
    "IAM",
    "LOGGING",
    "SECRETMANAGER",
    "SERVICEUSAGE",
)


class VertexApi:
    """A server that runs.

    Args:
        url: its address.
        folder: where it keeps what it knows; what is in there is known from the beginning.
        certificates: those that it serves with; None takes those of the folder, or makes some.

    Raises:
        UserError: the folder is in use or damaged, or cannot be written.

    Attributes:
        url: its address, without a slash at the end.
        state: what it knows.
        folder: a folder of its own, with all that it knows; gcloud's configuration is looked for there.
        storage: Cloud Storage; there is a bucket `example-bucket`.
        places: the buckets as folders.
        certificates: for Google's host names, from a throwaway authority.
        faults: what fails next, and by chance.
        grpc_port, tls_port: where the proxy finds gRPC and REST with TLS.
    """

    def __init__(self, url: str, folder: Path, certificates: Certificates | None = None) -> None:
        self.url = url
        self.folder = folder
        self.kept = StateFolder(folder)
        try:
            self.state = State(self.kept)
            self.storage = Storage(folder / "gcs", folder / "storage", BUCKET, NUMBER)
            self.places = BucketPlaces(folder / "gcs", self.storage.files.buckets)
            self._bigquery: BigQuery | None = None
            self._bigquery_lock = threading.Lock()
            if any(self.kept.documents("bigqueryTables")):
                # What is damaged there is told at the start.
                self.bigquery()
        except BaseException:
            self.kept.close()
            raise
        self.certificates = certificates or certificates_in(folder / "certificates", PROJECT)
        self.grpc_port = self.tls_port = 0
        self.faults = Faults()
        work = folder / "work"
        work.mkdir(exist_ok=True)
        self.state.replicas.folder = work
        self.state.replicas.identity = self.identity

    def bigquery(self) -> BigQuery:
        """BigQuery; its types are imported with the first request, which takes a second.

        Raises:
            UserError: what the state has of it is damaged.
        """
        from gpu_pipelines.emulator.bigquery_service import BigQuery
        from gpu_pipelines.emulator.bigquery_tables import Tables

        with self._bigquery_lock:
            if self._bigquery is None:
                self._bigquery = BigQuery(Tables(state=self.kept), self.places)
            return self._bigquery

    def fail_next(
        self,
        pattern: str,
        status: int | None = 503,
        times: int = 1,
        *,
        message: str = "",
        took_effect: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Lets the next requests fail.

        Args:
            pattern: regular expression, looked for in `METHOD /path`, such as "POST .*/customJobs$"; of gRPC, in
                `GRPC Method`, such as "GRPC CreateCustomJob".
            status: HTTP status of the answer; 0 answers nothing and closes the connection; None answers as usual.
            times: for how many requests.
            message: Google's message; empty for the usual one of that status.
            took_effect: carry out the request before the answer is spoilt, as when an answer is lost on the way.
            seconds: hold the answer back for so long.
        """
        text = message or MESSAGES.get(status or 0, "")
        self.faults.add(Fault(pattern, status, times, text, took_effect, seconds))

    def wait(self, name: str, seconds: float = 600.0) -> Any:
        """Waits for the end of a pipeline job, a custom job or a batch prediction job.

        Args:
            name: its resource name.
            seconds: how long at most.

        Returns:
            The job, as the API has it.

        Raises:
            TimeoutError: it has not ended by then.
        """
        if "/customJobs/" in name:
            return self.state.custom_jobs.wait(name, seconds)
        if "/batchPredictionJobs/" in name:
            return self.state.batch_prediction_jobs.wait(name, seconds)
        until = time.monotonic() + seconds
        while (job := self.state.pipeline_jobs.one(name)).state not in ENDED:
            if time.monotonic() > until:
                raise TimeoutError(f"{name} is {job.state.name} after {seconds} s")
            time.sleep(_LOOK_S)
        return job

    def fault(self, call: str) -> Fault | None:
        """The failure that is ordered for a request; held back already for as long as it should be."""
        found = self.faults.take(call)
        if found:
            time.sleep(found.seconds)
        return found if found and found.status is not None else None

    def about(self) -> dict[str, Any]:
        """What it says of itself to `gpu-pipelines emulator env`."""
        return {
            "version": __version__,
            "url": self.url,
            "state": str(self.folder),
            "project": PROJECT,
            "region": REGION,
            "bucket": f"gs://{BUCKET}",
            "repository": f"{self.url}/{PROJECT}/{REPOSITORY}",
            "environment": {**self.environment(), **terraform_variables(self.url)},
        }

    def environment(self) -> dict[str, str]:
        """Variables with which gcloud, Google's libraries and this project speak to this server."""
        overrides = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{self.url}/" for name in _OVERRIDDEN}
        return {
            **overrides,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY": f"{self.url}/bigquery/v2/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/v1/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_AI_REGION": REGION,
            "STORAGE_EMULATOR_HOST": self.url,
            **self.proxy_environment(),
        }

    def answer_to(self, command: Sequence[str], cwd: Path | None = None) -> str:
        """What a command prints that speaks to this server, such as the real gcloud, and that has to end well."""
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def proxy_environment(self) -> dict[str, str]:
        """Variables with which Google's libraries reach this server at Google's own addresses, with credentials."""
        # gcsfs asks for a bucket's type over gRPC first, which no emulator answers.
        return {**self.certificates.environment(self.url), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}

    def identity(self, account: str) -> dict[str, str]:
        """Variables with which a process is an account; none where all may do everything."""
        if not self.state.permissions.are_checked:
            return {}
        key = self.folder / "certificates/accounts" / f"{account}.json"
        write_key(key, self.certificates.service_account, account)
        return {
            "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": str(key),
            "GOOGLE_APPLICATION_CREDENTIALS": str(key),
            "STORAGE_EMULATOR_HOST": f"{self.url}/as/{account}",
        }

    def gcloud_of_steps(self) -> dict[str, str]:
        """Variables with which gcloud and gsutil in a step reach this server at Google's own addresses."""
        return {
            "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": str(self.certificates.service_account),
            "CLOUDSDK_CONFIG": str(self.folder / "gcloud-of-steps"),
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": str(self.certificates.trusted),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_PROJECT": PROJECT,
        }

    def close(self) -> None:
        """Ends what it runs."""
        self.state.replicas.close()
        self.storage.close()
        self.kept.close()


def terraform_variables(url: str) -> dict[str, str]:
    """Variables with which Terraform's google provider speaks to an address; there is one for each service."""
    endpoints = {
        "ARTIFACT_REGISTRY": "v1",
        "BIGQUERY": "bigquery/v2",
        "CLOUD_RESOURCE_MANAGER": "v1",
        "IAM": "v1",
        "RESOURCE_MANAGER": "v1",
        "SERVICE_USAGE": "v1",
        "STORAGE": "storage/v1",
        "VERTEX_AI": "v1",
    }
    named = {f"GOOGLE_{name}_CUSTOM_ENDPOINT": f"{url}/{path}/" for name, path in endpoints.items()}
    return {**named, "GOOGLE_OAUTH_ACCESS_TOKEN": TOKEN, "GOOGLE_PROJECT": PROJECT, "GOOGLE_REGION": REGION}
