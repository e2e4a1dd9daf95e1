"""Requests that are wrong get an error of Google's form, and change nothing; none gets a 500."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed_requests import Sent, broken, with_values
from valid_requests import ODD, OTHERS, VERTEX, WRONG

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

SERVICES = {**VERTEX, **OTHERS}
_QUIET = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
Ask = Callable[[Sent], tuple[int, bytes]]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory, vertex_certificates: Any) -> Iterator[VertexApi]:
    """One that has something of everything."""
    from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator

    state = tmp_path_factory.mktemp("malformed")
    with running_emulator(EmulatorSettings(state=state, certificates=vertex_certificates, speed=0.001)) as api:
        for service, requests in SERVICES.items():
            for sent in requests:
                status, body = ask(api, _with_version(api, sent))
                assert status == 200, (service, sent.verb, sent.path, body)
        api.state.custom_jobs.wait(next(iter(api.state.custom_jobs.jobs)), 60)
        for tuned in api.state.tuning_jobs.jobs.values():
            while tuned.end_time is None:
                time.sleep(0.05)
        api.state.batch_prediction_jobs.wait(next(iter(api.state.batch_prediction_jobs.jobs)), 60)
        (job,) = api.state.pipeline_jobs.jobs
        while api.state.pipeline_jobs.one(job).end_time is None:
            time.sleep(0.05)
        yield api


def _with_version(api: VertexApi, sent: Sent) -> Sent:
    if "tagId" not in sent.path:
        return sent
    (package,) = api.state.repositories.packages.values()
    return Sent(sent.verb, sent.path, {"version": f"packages/echoes/versions/{next(iter(package.versions))}"})


def ask(api: VertexApi, sent: Sent) -> tuple[int, bytes]:
    """Sends a request; gives status and body."""
    address = urlsplit(api.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request(sent.verb, sent.path, sent.content, {"Content-Type": sent.kind})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def known(api: VertexApi) -> dict[str, Any]:
    """All that it knows: what it holds, and its files with their sizes and times."""
    state = api.state
    held = [state.custom_jobs, state.batch_prediction_jobs, state.pipeline_jobs, state.schedules, state.endpoints]
    messages = [one for each in held for one in each.held.values()]
    messages += [
        one for kind in (state.models.versions, state.models.evaluations) for all_of in kind.values() for one in all_of
    ]
    found: dict[str, Any] = {"messages": [type(one).pb(one).SerializeToString(deterministic=True) for one in messages]}
    found |= {name: package.to_json() for name, package in state.repositories.packages.items()}
    for part in ("resources", "gcs", "storage", "bigquery"):
        for folder, _, files in os.walk(api.folder / part):
            for file in files:
                path = Path(folder, file)
                found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found


def check_refused(api: VertexApi, sent: Sent, before: dict[str, Any]) -> None:
    """That a request gets an error of Google's form, and changes nothing of what was known before."""
    status, body = ask(api, sent)
    told = f"{sent.verb} {sent.path[:200]} {str(sent.body)[:300]}: {status} {body[:500]!r}"
    assert 400 <= status < 500 or status == 501, told
    error = json.loads(body)["error"]
    assert error["code"] == status, told
    assert error["message"], told
    assert (
        "errors" in error
        if sent.path.startswith(("/storage", "/upload", "/download", "/batch"))
        else (error["status"].isupper())
    ), told
    assert known(api) == before, told


def refused(emulator: VertexApi, service: str, count: int) -> None:
    """Sends so many wrong requests of a service."""
    before = known(emulator)
    # Each way is made once, not once for each example.
    ways = [broken(sent) for sent in SERVICES[service]]

    @settings(max_examples=count, **_QUIET)
    @given(st.sampled_from(ways).flatmap(lambda way: way))
    def send(sent: Sent) -> None:
        check_refused(emulator, sent, before)

    send()


@pytest.mark.parametrize("service", SERVICES)
def test_a_hundred_malformed_requests_are_refused(emulator: VertexApi, service: str) -> None:
    refused(emulator, service, 100)


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_a_thousand_malformed_requests_are_refused(emulator: VertexApi, service: str) -> None:
    refused(emulator, service, 1000)


def test_values_that_are_wrong_in_a_field_are_refused(emulator: VertexApi) -> None:
    every = {sent.path: sent for requests in SERVICES.values() for sent in requests}
    before = known(emulator)
    for path, wrong in WRONG.items():
        for sent in with_values(every[path], wrong):
            check_refused(emulator, sent, before)


def test_bytes_that_are_no_request_are_refused_over_grpc(emulator: VertexApi) -> None:
    import grpc

    authority = grpc.ssl_channel_credentials(emulator.certificates.authority.read_bytes())
    named = [("grpc.ssl_target_name_override", "us-central1-aiplatform.googleapis.com")]
    methods = [method for method, _ in emulator.state.handlers.values()]

    with grpc.secure_channel(f"127.0.0.1:{emulator.grpc_port}", authority, named) as channel:

        @settings(max_examples=100, **_QUIET)
        @given(st.sampled_from(methods), st.binary(max_size=60))
        def send(method: Any, content: bytes) -> None:
            before = known(emulator)
            call = channel.unary_unary(f"/{method.service}/{method.name}")
            with pytest.raises(grpc.RpcError) as caught:
                call(content, metadata=[("authorization", "Bearer t")], timeout=20)
            assert caught.value.code().name in ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"), caught.value
            assert known(emulator) == before

        send()


@pytest.mark.parametrize("kind", ODD)
def test_odd_requests_are_refused(emulator: VertexApi, kind: str) -> None:
    before = known(emulator)
    for sent in ODD[kind]:
        check_refused(emulator, sent, before)
