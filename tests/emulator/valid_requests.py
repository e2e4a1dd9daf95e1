"""A request of each method of the emulator, all of which it takes, in an order in which it can."""

from __future__ import annotations

import json
from typing import Any

from google.cloud import aiplatform_v1 as api
from malformed_requests import PARENT, REPOSITORY, Sent

SPEC = {
    "pipelineInfo": {"name": "echoes"},
    "root": {"dag": {"tasks": {"echo": {"componentRef": {"name": "comp-echo"}, "taskInfo": {"name": "echo"}}}}},
    "components": {"comp-echo": {"executorLabel": "exec-echo"}},
    "deploymentSpec": {"executors": {"exec-echo": {"container": {"image": "i", "command": ["true"]}}}},
    "schemaVersion": "2.1.0",
}
JOB = {
    "displayName": "p",
    "labels": {"a": "b"},
    "pipelineSpec": SPEC,
    "runtimeConfig": {
        "gcsOutputDirectory": "gs://example-bucket/r",
        "failurePolicy": "PIPELINE_FAILURE_POLICY_FAIL_FAST",
    },
}
CUSTOM = {
    "displayName": "c",
    "jobSpec": {
        "scheduling": {"timeout": "3600s", "restartJobOnWorkerRestart": True},
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-4"},
                "replicaCount": "1",
                "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
                "containerSpec": {"imageUri": "i", "command": ["true"], "env": [{"name": "A", "value": "a"}]},
            }
        ],
    },
}
TUNING = {
    "displayName": "t",
    "maxTrialCount": 2,
    "parallelTrialCount": 1,
    "studySpec": {
        "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
        "parameters": [{"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1.0}}],
    },
    "trialJobSpec": CUSTOM["jobSpec"],
}
BATCH = {
    "displayName": "b",
    "labels": {"a": "b"},
    "model": f"{PARENT}/models/digits".removeprefix("/v1/"),
    "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://example-bucket/none*"]}},
    "instanceConfig": {"instanceType": "object", "keyField": "id", "includedFields": ["x"]},
    "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://example-bucket/o"}},
    "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-2"}, "maxReplicaCount": 2},
    "manualBatchTuningParameters": {"batchSize": 4},
}
SCHEDULE = {
    "displayName": "nightly",
    "cron": "TZ=Europe/Paris 0 3 * * *",
    "maxConcurrentRunCount": "1",
    "maxRunCount": "5",
    "createPipelineJobRequest": {"parent": PARENT.removeprefix("/v1/"), "pipelineJob": JOB},
}
MODEL = {
    "model": {
        "displayName": "digits",
        "artifactUri": "gs://example-bucket/m",
        "containerSpec": {"imageUri": "i", "command": ["true"], "ports": [{"containerPort": 80}]},
        "versionAliases": ["champion"],
    },
    "modelId": "digits",
}
EVALUATION = {
    "modelEvaluation": {
        "metricsSchemaUri": "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml",
        "metrics": {"auRoc": 0.5},
    }
}
DEPLOYED = {
    "deployedModel": {
        "model": f"{PARENT}/models/digits".removeprefix("/v1/"),
        "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-4"}, "minReplicaCount": 1},
    },
    "trafficSplit": {"0": 100},
}
#: Paths of BigQuery.
SHOP = "/bigquery/v2/projects/example-project"
TABLE = {
    "tableReference": {"projectId": "example-project", "datasetId": "shop", "tableId": "rows"},
    "schema": {"fields": [{"name": "a", "type": "INTEGER"}, {"name": "b", "type": "STRING", "mode": "REPEATED"}]},
}
_QUERY = {"query": "SELECT a FROM `shop.rows`", "useLegacySql": False}
_FORM = f'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n{json.dumps(SPEC)}\r\n--b--\r\n'.encode()
#: The digest of the version takes its place.
_VERSION = "packages/echoes/versions/sha256:0"

VERTEX: dict[str, list[Sent]] = {
    "custom jobs": [
        Sent("POST", f"{PARENT}/customJobs", CUSTOM, message=api.CustomJob),
        Sent("GET", f"{PARENT}/customJobs?filter=displayName%3Dc&pageSize=1"),
    ],
    "tuning jobs": [
        Sent("POST", f"{PARENT}/hyperparameterTuningJobs", TUNING, message=api.HyperparameterTuningJob),
    ],
    "pipeline jobs": [
        Sent("POST", f"{PARENT}/pipelineJobs", JOB, message=api.PipelineJob),
        Sent("GET", f"{PARENT}/pipelineJobs?pageSize=1"),
    ],
    "schedules": [
        Sent("POST", f"{PARENT}/schedules", SCHEDULE, message=api.Schedule),
        Sent("GET", f"{PARENT}/schedules?filter=state%3DACTIVE"),
    ],
    "models": [
        Sent("POST", f"{PARENT}/models:upload", MODEL, message=api.UploadModelRequest),
        Sent("GET", f"{PARENT}/models/digits"),
        Sent("POST", f"{PARENT}/models/digits:mergeVersionAliases", {"versionAliases": ["best"]},
             message=api.MergeVersionAliasesRequest),
        Sent("POST", f"{PARENT}/models/digits/evaluations:import", EVALUATION,
             message=api.ImportModelEvaluationRequest),
        Sent("GET", f"{PARENT}/models/digits:listVersions?pageSize=2"),
    ],
    "batch prediction jobs": [
        Sent("POST", f"{PARENT}/batchPredictionJobs", BATCH, message=api.BatchPredictionJob),
        Sent("GET", f"{PARENT}/batchPredictionJobs?filter=displayName%3Db&pageSize=1"),
    ],
    "endpoints": [
        Sent("POST", f"{PARENT}/endpoints?endpointId=e1", {"displayName": "e"}, message=api.Endpoint),
        Sent("GET", f"{PARENT}/endpoints/e1"),
        Sent("PATCH", f"{PARENT}/endpoints/e1?updateMask=displayName,labels",
             {"displayName": "f", "labels": {"a": "b"}}, message=api.Endpoint),
        Sent("POST", f"{PARENT}/endpoints/e1:deployModel", DEPLOYED, message=api.DeployModelRequest),
    ],
}  # fmt: skip
OTHERS: dict[str, list[Sent]] = {
    "artifact registry": [
        Sent("POST", "/example-project/pipelines", _FORM, "multipart/form-data; boundary=b"),
        Sent("GET", f"{REPOSITORY}/packages?pageSize=10"),
        Sent("GET", f"{REPOSITORY}/packages/echoes/versions"),
        Sent("POST", f"{REPOSITORY}/packages/echoes/tags?tagId=best", {"version": _VERSION}),
        Sent("GET", f"{REPOSITORY}"),
    ],
    "logging": [
        Sent("POST", "/v2/entries:list", {"resourceNames": ["projects/example-project"], "pageSize": 10,
                                          "filter": "severity>=INFO", "orderBy": "timestamp desc"}),
    ],
    "quotas": [
        Sent("GET", "/v1/projects/example-project/locations/global/services/aiplatform.googleapis.com/quotaInfos"),
        Sent("GET", "/v1/projects/example-project/services?filter=state:ENABLED"),
        Sent("GET", "/v3/projects/example-project"),
        Sent("POST", "/v1/projects/example-project:testIamPermissions", {"permissions": ["a.b.c"]}),
    ],
    "bigquery": [
        Sent("POST", f"{SHOP}/datasets", {"datasetReference": {"datasetId": "shop"}}),
        Sent("GET", f"{SHOP}/datasets/shop"),
        Sent("PATCH", f"{SHOP}/datasets/shop", {"labels": {"a": "b"}}),
        Sent("POST", f"{SHOP}/datasets/shop/tables", TABLE),
        Sent("GET", f"{SHOP}/datasets/shop/tables?maxResults=5"),
        Sent("PATCH", f"{SHOP}/datasets/shop/tables/rows", {"labels": {"a": "b"}}),
        Sent("POST", f"{SHOP}/datasets/shop/tables/rows/insertAll", {"rows": [{"json": {"a": 1, "b": ["x"]}}]}),
        Sent("GET", f"{SHOP}/datasets/shop/tables/rows/data?maxResults=1&selectedFields=a"),
        Sent("POST", f"{SHOP}/queries", _QUERY),
        Sent("POST", f"{SHOP}/jobs", {"configuration": {"query": _QUERY}, "jobReference": {"jobId": "once"}}),
        Sent("GET", f"{SHOP}/queries/once?maxResults=1&location=US"),
    ],
    "storage": [
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=media&name=a.txt", b"kept", "text/plain"),
        Sent("GET", "/storage/v1/b/example-bucket/o/a.txt"),
        Sent("GET", "/storage/v1/b/example-bucket/o?prefix=a&maxResults=5"),
        Sent("POST", "/storage/v1/b?project=example-project", {"name": "another-bucket"}),
    ],
}  # fmt: skip
#: Fields whose values are of their type and wrong, by the path of the request.
WRONG: dict[str, dict[str, Any]] = {
    f"{PARENT}/customJobs": {
        "displayName": "", "labels.A B": "x", "jobSpec.workerPoolSpecs": [], "jobSpec.network": "a network",
        "jobSpec.workerPoolSpecs.0.machineSpec.machineType": "n1-strange",
        "jobSpec.workerPoolSpecs.0.replicaCount": "-1", "jobSpec.workerPoolSpecs.0.diskSpec.bootDiskSizeGb": 1,
        "jobSpec.workerPoolSpecs.0.containerSpec.env.0.name": "a b", "jobSpec.scheduling.timeout": "-5s",
    },
    f"{PARENT}/hyperparameterTuningJobs": {
        "maxTrialCount": 0, "parallelTrialCount": -1, "studySpec.metrics": [], "studySpec.parameters": [],
    },
    f"{PARENT}/pipelineJobs": {
        "displayName": "n" * 129, "pipelineSpec": {}, "pipelineSpec.root": 1, "pipelineSpec.components": {},
        "pipelineSpec.deploymentSpec.executors.exec-echo": {"container": "x"},
        "pipelineSpec.deploymentSpec.executors": ["x"],
        "pipelineSpec.deploymentSpec.executors.exec-echo.container.command": ["no-such-program"],
        "pipelineSpec.root.dag.tasks.echo.dependentTasks": ["echo"],
        "pipelineSpec.root.dag.tasks.echo.componentRef": {},
        "pipelineSpec.root.dag.tasks.echo.triggerPolicy": {"condition": "((("},
        "pipelineSpec.components.comp-echo": {"dag": {"tasks": {"a": {"componentRef": {"name": "comp-echo"}}}}},
        "runtimeConfig.gcsOutputDirectory": "/tmp", "runtimeConfig.parameterValues": {"no_such": 1},
    },
    f"{PARENT}/schedules": {
        "cron": "0 3 * *", "maxConcurrentRunCount": "0", "endTime": "2001-01-01T00:00:00Z",
        "createPipelineJobRequest.parent": "projects/other/locations/us-central1",
        "createPipelineJobRequest.pipelineJobId": "x", "createPipelineJobRequest.pipelineJob.pipelineSpec": {},
    },
    f"{PARENT}/batchPredictionJobs": {
        "displayName": "", "model": "none", "inputConfig": {}, "inputConfig.instancesFormat": "parquet",
        "inputConfig.gcsSource.uris": [], "inputConfig.gcsSource.uris.0": "/tmp", "outputConfig": {},
        "outputConfig.predictionsFormat": "csv", "outputConfig.gcsDestination.outputUriPrefix": "/tmp",
        "instanceConfig.instanceType": "table", "instanceConfig.excludedFields": ["y"], "dedicatedResources": {},
        "dedicatedResources.machineSpec.machineType": "none", "dedicatedResources.startingReplicaCount": 3,
        "manualBatchTuningParameters.batchSize": -1, "unmanagedContainerModel": {"artifactUri": "gs://a/b"},
    },
    f"{PARENT}/models:upload": {
        "modelId": "A B", "parentModel": "projects/example-project/locations/us-central1/models/none",
        "model.artifactUri": "/tmp", "model.containerSpec.imageUri": "", "model.displayName": "",
    },
    f"{PARENT}/models/digits:mergeVersionAliases": {"versionAliases": [], "versionAliases.0": "A B"},
    f"{PARENT}/models/digits/evaluations:import": {
        "modelEvaluation.metricsSchemaUri": "gs://none", "modelEvaluation.metrics.no": 1,
    },
    f"{PARENT}/endpoints?endpointId=e1": {"displayName": "", "labels": {"A": "b"}},
    f"{PARENT}/endpoints/e1?updateMask=displayName,labels": {"displayName": "", "labels": {"A": "b"}},
    f"{PARENT}/endpoints/e1:deployModel": {
        "trafficSplit": {"0": 99}, "trafficSplit.9": 0, "deployedModel.model": "none",
        "deployedModel.dedicatedResources": {},
    },
    f"{SHOP}/datasets": {
        "datasetReference": {}, "datasetReference.datasetId": "a b",
    },
    f"{SHOP}/datasets/shop": {"labels": ["a"]},
    f"{SHOP}/datasets/shop/tables": {
        "tableReference": {}, "tableReference.tableId": "a.b", "schema": {"fields": [{"name": "a"}]},
        "schema.fields.0.type": "NUMBERS", "schema.fields.0.name": "", "schema.fields": "a", "view": {"query": "x"},
    },
    f"{SHOP}/datasets/shop/tables/rows": {"labels": ["a"]},
    f"{SHOP}/datasets/shop/tables/rows/insertAll": {"rows": "a", "rows.0": 1},
    f"{SHOP}/queries": {"query": "", "query.a": 1, "useLegacySql": True},
    f"{SHOP}/jobs": {
        "configuration": {}, "configuration.query": "a", "configuration.query.query": "DROP TABLE x",
        "configuration.load": "a", "jobReference": [], "jobReference.jobId": "a b",
    },
    "/v2/entries:list": {
        "resourceNames": [], "resourceNames.0": 1, "filter": "((((", "orderBy": "no", "pageSize": "ten",
        "pageToken": "x", "pageToken ": "x",
    },
    "/v1/projects/example-project:testIamPermissions": {"permissions": "a", "permissions.0": {}},
    "/storage/v1/b?project=example-project": {"name": "", "name.first": 1},
    f"{REPOSITORY}/packages/echoes/tags?tagId=best": {"version": "none", "no": 1, "version.no": 1},
}  # fmt: skip
#: Requests that are wrong as they are.
ODD: dict[str, list[Sent]] = {
    "lists": [
        *(Sent("GET", f"{PARENT}/{kind}?{query}")
          for kind in ("customJobs", "pipelineJobs", "batchPredictionJobs", "schedules", "models", "endpoints")
          for query in ("pageToken=x", "pageToken=-1", "pageSize=-1", "pageSize=ten", "pageSize=99999999999",
                        "filter=%28", "filter=a", "filter=a%3D~%22%5B%22", "filter=" + "NOT%20" * 2000)
          ),
    ],
    "verbs": [Sent(verb, f"{PARENT}/{kind}") for verb in ("PUT", "DELETE", "PATCH")
              for kind in ("customJobs", "models", "none", "")],
    "names": [
        *(Sent("GET", f"{PARENT}/{kind}/{name}") for kind in ("customJobs", "pipelineJobs", "schedules", "endpoints")
          for name in ("0", "%00", "..%2F..", "n" * 2000, "%FF%FE", "a%20b", "1:cancel")),
        Sent("POST", f"{PARENT}/pipelineJobs?pipelineJobId=A", JOB),
        Sent("POST", f"{PARENT}/endpoints?endpointId=" + "e" * 300, {"displayName": "e"}),
        Sent("POST", f"{PARENT}/endpoints/e1:predict", {"instances": [1]}),
        Sent("POST", f"{PARENT}/endpoints/e1:undeployModel", {"deployedModelId": "77"}),
        Sent("PATCH", f"{PARENT}/endpoints/e1?updateMask=displayName,trafficSplit",
             {"displayName": "other", "trafficSplit": {"8": 100}}),
    ],
    "registry": [
        Sent("POST", "/example-project/pipelines", b"\xff\xfe", "multipart/form-data; boundary=b"),
        Sent("POST", "/example-project/pipelines", b"{}", "application/json"),
        Sent("POST", "/example-project/none", b"{}", "application/json"),
        *(Sent("POST", "/example-project/pipelines",
               b'--b\r\nContent-Disposition: form-data; name="content"\r\n\r\n' + text + b"\r\n--b--\r\n",
               "multipart/form-data; boundary=b")
          for text in (b"", b"a: [", b"[" * 5000, b"2001-99-99", b"\xff", b"a: b", b"pipelineInfo: 1")),
        Sent("POST", f"{REPOSITORY}/packages", {}), Sent("DELETE", f"{REPOSITORY}/packages"),
        Sent("POST", f"{REPOSITORY}/packages/echoes", {}),
        Sent("PATCH", f"{REPOSITORY}/packages/echoes/versions/x", {}),
        Sent("DELETE", f"{REPOSITORY}/packages/echoes/versions/none"), Sent("GET", f"{REPOSITORY}/packages?pageSize=x"),
        Sent("GET", f"{REPOSITORY}/packages/%00/versions"), Sent("GET", f"{REPOSITORY}/packages?pageToken=x"),
    ],
    "bigquery": [
        *(Sent("GET", f"{SHOP}/datasets/shop/tables/rows/data?{query}")
          for query in ("maxResults=x", "pageToken=x", "startIndex=-1", "selectedFields=none", "no=1")),
        Sent("GET", f"{SHOP}/datasets/none"), Sent("GET", f"{SHOP}/datasets/shop/tables/none"),
        Sent("GET", f"{SHOP}/datasets/none/tables"), Sent("GET", f"{SHOP}/jobs/none"),
        Sent("GET", f"{SHOP}/queries/none"),
        Sent("DELETE", f"{SHOP}/datasets/shop"), Sent("DELETE", f"{SHOP}/datasets/shop/tables/none"),
        Sent("POST", f"{SHOP}/datasets", {"datasetReference": {"datasetId": "shop"}}),
        Sent("POST", f"{SHOP}/datasets/shop/tables", TABLE),
        Sent("POST", f"{SHOP}/jobs", {"configuration": {"query": _QUERY}, "jobReference": {"jobId": "once"}}),
        Sent("POST", f"{SHOP}/queries", {**_QUERY, "query": "SELECT FROM FROM"}),
        Sent("POST", f"{SHOP}/queries", {**_QUERY, "query": "SELECT 1; SELECT 2"}),
        Sent("POST", f"{SHOP}/queries", {**_QUERY, "query": "SELECT a FROM `shop.none`"}),
        Sent("POST", f"{SHOP}/queries", {**_QUERY, "query": "SELECT " + "(" * 2000}),
        Sent("POST", f"/upload{SHOP}/jobs?uploadType=none", b"x"), Sent("PUT", f"/upload{SHOP}/none", b"x"),
        Sent("POST", f"/upload{SHOP}/jobs?uploadType=resumable", b"x"),
        Sent("POST", f"/upload{SHOP}/jobs?uploadType=multipart", b"x", "multipart/related"),
        Sent("POST", f"/upload{SHOP}/jobs?uploadType=multipart", b"--b\r\n\r\n{}\r\n--b--",
             "multipart/related; boundary=b"),
        Sent("PUT", f"/upload{SHOP}/jobs?uploadType=resumable&upload_id=none", b"x"),
    ],
    "storage": [
        Sent("GET", "/storage/v1/b/none/o"), Sent("GET", "/storage/v1/b/example-bucket/o/none"),
        Sent("POST", "/storage/v1/b", b"{", "application/json"), Sent("POST", "/storage/v1/b", {"a": 1}),
        Sent("GET", "/storage/v1/none"), Sent("PUT", "/upload/storage/v1/b/example-bucket/o?upload_id=none", b"x"),
        Sent("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=a", b"x"),
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=none&name=a", b"x"),
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=media", b"x"),
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=multipart", b"x", "multipart/related"),
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=multipart", b"x",
             "multipart/related; boundary=b"),
        Sent("GET", "/storage/v1/b/example-bucket/o/a.txt?ifGenerationMatch=x"),
        Sent("GET", "/download/storage/v1/b/example-bucket/o/none?alt=media"),
        Sent("POST", "/storage/v1/b/example-bucket/o/x/compose", {"sourceObjects": 1}),
        Sent("POST", "/storage/v1/b/example-bucket/o/none/rewriteTo/b/example-bucket/o/x", {}),
        Sent("DELETE", "/storage/v1/b/none"), Sent("DELETE", "/storage/v1/b/example-bucket/o/none"),
        Sent("PATCH", "/storage/v1/b/example-bucket/o/a.txt", b"[1", "application/json"),
        Sent("GET", "/storage/v1/b/example-bucket/o?maxResults=x"), Sent("POST", "/batch/storage/v1", b"x"),
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=media&name=..%2F..%2F..%2Fescaped", b"x"),
        Sent("POST", "/upload/storage/v1/b/example-bucket/o?uploadType=media&name=%00", b"x"),
        Sent("GET", "/storage/v1/b/..%2F..%2F/o"), Sent("POST", "/storage/v1/b", {"name": "../../escaped"}),
    ],
}  # fmt: skip
