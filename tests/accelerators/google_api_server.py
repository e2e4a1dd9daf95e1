"""A local server that answers like the REST interfaces of Cloud Quotas, Cloud Billing and Compute Engine.

Requests are parsed, and answers built, with the APIs' own protobuf types: a parameter that the API does not have is a
400, as it would be there. Lists come in pages of two, so that a client that reads only the first page is found out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from google.cloud import billing_v1, cloudquotas_v1, compute_v1
from google.protobuf import json_format

from gpu_pipelines.emulator.json_server import JsonHandler, answering, server_of

PAGE_SIZE = 2


class GoogleApis:
    """What the server knows, and the requests it was sent.

    Attributes:
        quotas: quota infos of the project.
        skus: SKUs of Compute Engine.
        accelerators: zone → names of accelerator types.
        machines: zone → machine types.
        denied: an HTTP status to answer everything with; None answers.
        requests: the parsed requests, in order.
    """

    def __init__(self) -> None:
        self.quotas: list[cloudquotas_v1.QuotaInfo] = []
        self.skus: list[billing_v1.Sku] = []
        self.accelerators: dict[str, list[str]] = {}
        self.machines: dict[str, list[compute_v1.MachineType]] = {}
        self.denied: int | None = None
        self.requests: list[Any] = []

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body for a GET."""
        if self.denied:
            return self.denied, {"error": {"code": self.denied, "message": "Permission denied on the project."}}
        for pattern, handle in self._routes():
            match = re.fullmatch(pattern, path)
            if match:
                try:
                    return 200, handle(query, **match.groupdict())
                except (json_format.ParseError, ValueError) as error:
                    return 400, {"error": {"code": 400, "message": str(error)}}
        return 404, {"error": {"code": 404, "message": f"There is no {path}."}}

    def _routes(self) -> list[tuple[str, Callable[..., dict[str, Any]]]]:
        return [
            (
                r"/v1/(?P<parent>projects/[^/]+/locations/global/services/aiplatform\.googleapis\.com)/quotaInfos",
                self._quotas,
            ),
            (r"/v1/(?P<parent>services/6F81-5844-456A)/skus", self._skus),
            (r"/compute/v1/projects/(?P<project>[^/]+)/aggregated/acceleratorTypes", self._accelerators),
            (r"/compute/v1/projects/(?P<project>[^/]+)/aggregated/machineTypes", self._machines),
        ]

    def _parsed(self, kind: Any, query: dict[str, str], **of_the_path: str) -> Any:
        request = kind()
        json_format.ParseDict({**query, **of_the_path}, kind.pb(request))
        self.requests.append(request)
        return request

    def _quotas(self, query: dict[str, str], parent: str) -> dict[str, Any]:
        request = self._parsed(cloudquotas_v1.ListQuotaInfosRequest, query, parent=parent)
        page, token = page_of(self.quotas, request.page_token)
        return body(cloudquotas_v1.ListQuotaInfosResponse(quota_infos=page, next_page_token=token))

    def _skus(self, query: dict[str, str], parent: str) -> dict[str, Any]:
        request = self._parsed(billing_v1.ListSkusRequest, query, parent=parent)
        page, token = page_of(self.skus, request.page_token)
        return body(billing_v1.ListSkusResponse(skus=page, next_page_token=token))

    def _accelerators(self, query: dict[str, str], project: str) -> dict[str, Any]:
        request = self._parsed(compute_v1.AggregatedListAcceleratorTypesRequest, query, project=project)
        page, token = page_of(sorted(self.accelerators), request.page_token)
        items = {
            f"zones/{zone}": compute_v1.AcceleratorTypesScopedList(
                accelerator_types=[compute_v1.AcceleratorType(name=name) for name in self.accelerators[zone]]
            )
            for zone in page
        }
        return body(compute_v1.AcceleratorTypeAggregatedList(items=items, next_page_token=token))

    def _machines(self, query: dict[str, str], project: str) -> dict[str, Any]:
        request = self._parsed(compute_v1.AggregatedListMachineTypesRequest, query, project=project)
        wanted = re.fullmatch(r"name eq '(.*)'", request.filter)
        page, token = page_of(sorted(self.machines), request.page_token)
        items = {
            f"zones/{zone}": compute_v1.MachineTypesScopedList(
                machine_types=[m for m in self.machines[zone] if not wanted or re.fullmatch(wanted[1], m.name)]
            )
            for zone in page
        }
        return body(compute_v1.MachineTypeAggregatedList(items=items, next_page_token=token))


def page_of(everything: Sequence[Any], token: str) -> tuple[list[Any], str]:
    """One page of a list, and the token of the next."""
    start = int(token or 0)
    end = start + PAGE_SIZE
    return list(everything[start:end]), str(end) if end < len(everything) else ""


def body(message: Any) -> dict[str, Any]:
    """A message as the JSON of the REST interface."""
    document: dict[str, Any] = json_format.MessageToDict(type(message).pb(message))
    return document


@contextmanager
def serving(apis: GoogleApis) -> Iterator[str]:
    """Serves them on a free port; gives the address."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            # `$alt` and its like are parameters of the protocol, not of the request.
            query = {name: value for name, value in parse_qsl(address.query) if not name.startswith("$")}
            status, document = apis.answer(address.path, query)
            self.send(status, document)

    with answering(server_of(Handler)) as url:
        yield url
