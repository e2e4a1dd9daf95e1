"""A running server: its state, its failures, and its address for clients."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines import __version__
from gpu_pipelines.emulator.certificates import Certificates, certificates_in
from gpu_pipelines.emulator.faults import MESSAGES, Fault, Faults
from gpu_pipelines.emulator.pipelines.jobs import ENDED
from gpu_pipelines.emulator.project.permissions import write_key
from gpu_pipelines.emulator.services import BUCKET, NUMBER, PROJECT, REGION, REPOSITORY, State
from gpu_pipelines.emulator.state_folder import StateFolder
from gpu_pipelines.emulator.storage.bucket_places import BucketPlaces
from gpu_pipelines.emulator.storage.service import Storage

if TYPE_CHECKING:
    from gpu_pipelines.emulator.bigquery.service import BigQuery

_LOOK_S = 0.05
#: The token for Terraform's provider.
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
    """A running server.

    Args:
        url: its address.
        folder: the folder of its state, which is loaded at the start.
        certificates: the server's certificates; None takes those of the folder, or creates some.

    Raises:
        UserError: the folder is in use or damaged, or cannot be written to.

    Attributes:
        url: its address, without a slash at the end.
        state: its resources.
        folder: the folder of its state; also of gcloud's configuration.
        storage: Cloud Storage; there is a bucket `example-bucket`.
        places: the buckets as folders.
        certificates: the certificates for Google's host names, from a throwaway authority.
        faults: the next failures, and random ones.
        grpc_port, tls_port: the proxy's ports for gRPC and REST with TLS.
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
                # Damage there is reported at the start.
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
            UserError: BigQuery's part of the state is damaged.
        """
        from gpu_pipelines.emulator.bigquery.service import BigQuery
        from gpu_pipelines.emulator.bigquery.tables import Tables

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
        """Makes the next requests fail.

        Args:
            pattern: regular expression, searched in `METHOD /path`, such as "POST .*/customJobs$"; for gRPC, in
                `GRPC Method`, such as "GRPC CreateCustomJob".
            status: HTTP status of the answer; 0 answers nothing and closes the connection; None answers as usual.
            times: the number of requests.
            message: Google's message; empty for the usual one of that status.
            took_effect: carry out the request before the answer fails, as if the answer were lost on the way.
            seconds: hold the answer back for this long.
        """
        text = message or MESSAGES.get(status or 0, "")
        self.faults.add(Fault(pattern, status, times, text, took_effect, seconds))

    def wait(self, name: str, seconds: float = 600.0) -> Any:
        """Waits for the end of a pipeline job, a custom job or a batch prediction job.

        Args:
            name: its resource name.
            seconds: the longest wait.

        Returns:
            The job in the form of the API.

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
        """The failure ordered for a request, after its delay."""
        found = self.faults.take(call)
        if found:
            time.sleep(found.seconds)
        return found if found and found.status is not None else None

    def about(self) -> dict[str, Any]:
        """The description of the server for `gpu-pipelines emulator env`."""
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
        """Variables that make gcloud, Google's libraries and this project use this server."""
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
        """The output of a successful command that uses this server, such as the real gcloud."""
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def proxy_environment(self) -> dict[str, str]:
        """Variables with which Google's libraries reach this server at Google's own addresses, with credentials."""
        # gcsfs first asks for a bucket's type over gRPC, which no emulator answers.
        return {**self.certificates.environment(self.url), "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}

    def identity(self, account: str) -> dict[str, str]:
        """Variables that make a process an account; none if all accounts may do everything."""
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
        """Ends everything that it runs."""
        self.state.replicas.close()
        self.storage.close()
        self.kept.close()


def terraform_variables(url: str) -> dict[str, str]:
    """Variables that make Terraform's google provider use an address; there is one for each service."""
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
