"""The pods that KFP's driver and compiler make of a compiled file, after their sources at 2.17 or so:

backend/src/v2/driver/driver.go (`initPodSpecPatch`), backend/src/v2/driver/k8s.go (`extendPodSpecPatch`) and
backend/src/v2/compiler/argocompiler/container.go. Both documents are read with KFP's own protobuf types first, which
refuse fields that they do not know.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec, SinglePlatformSpec

from gpu_pipelines.targets.compiled import documents_of

LAUNCHER = "/kfp-launcher/launch"
#: Volumes that the compiler gives each pod besides the launcher's: where artifacts of each kind of storage are put.
_SCRATCH = {"gcs-scratch": "/gcs", "s3-scratch": "/s3", "minio-scratch": "/minio"}


class CompiledFile:
    """A compiled file, read as KFP's API server reads it.

    Args:
        text: its content.
    """

    def __init__(self, text: str) -> None:
        pipeline, platform = documents_of(text)
        self.pipeline = json_format.ParseDict(pipeline, PipelineSpec())
        self.platform = json_format.ParseDict(platform, PlatformSpec())
        kubernetes: SinglePlatformSpec = self.platform.platforms["kubernetes"]
        self.configurations = {
            label: json_format.ParseDict(json_format.MessageToDict(content), KubernetesExecutorConfig())
            for label, content in kubernetes.deployment_spec.executors.items()
        }

    @property
    def executors(self) -> dict[str, Any]:
        return json_format.MessageToDict(self.pipeline.deployment_spec)["executors"]

    def container(self, step: str) -> Any:
        """What a step runs."""
        return self.executors[f"exec-{step}"]["container"]

    def pod(self, step: str) -> dict[str, Any]:
        """The pod of a step."""
        label = f"exec-{step}"
        pod = _pod(self.container(step))
        if label in self.configurations:
            _extend(pod, self.configurations[label])
        return pod


def _pod(container: Any) -> dict[str, Any]:
    resources, limits, requests = container.get("resources", {}), {}, {}
    for name, kubernetes in (("Memory", "memory"), ("Cpu", "cpu")):
        for kind, target in (("Limit", limits), ("Request", requests)):
            if amount := resources.get(f"resource{name}{kind}"):
                target[kubernetes] = amount
    if accelerator := resources.get("accelerator"):
        limits[accelerator["resourceType"]] = accelerator["resourceCount"]
    mounts = [{"name": name, "mountPath": path} for name, path in _SCRATCH.items()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "step", "labels": {"pipeline/runid": "0f4c5b9e"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": container["image"],
                    "command": [LAUNCHER, "--executor_input", "{}", "--"],
                    "args": [*container["command"], *container["args"]],
                    "resources": {"limits": limits, "requests": requests},
                    "env": [dict(variable) for variable in container.get("env", [])],
                    "volumeMounts": [{"name": "kfp-launcher", "mountPath": "/kfp-launcher"}, *mounts],
                }
            ],
            "volumes": [{"name": name, "emptyDir": {}} for name in ("kfp-launcher", *_SCRATCH)],
        },
    }


def _extend(pod: dict[str, Any], config: Any) -> None:
    spec = pod["spec"]
    main = spec["containers"][0]
    for mount in config.pvc_mount:
        name = mount.pvc_name_parameter.runtime_value.constant.string_value
        assert name
        assert mount.mount_path
        spec["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": name}})
        main["volumeMounts"].append({"name": name, "mountPath": mount.mount_path})
    if config.HasField("node_selector"):
        spec["nodeSelector"] = dict(config.node_selector.labels)
    if config.tolerations:
        spec["tolerations"] = [json_format.MessageToDict(each) for each in config.tolerations]
    if config.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": each.secret_name} for each in config.image_pull_secret]
    for field in config.field_path_as_env:
        main["env"].append({"name": field.name, "valueFrom": {"fieldRef": {"fieldPath": field.field_path}}})
    for secret in config.secret_as_env:
        reference = {"name": secret.secret_name_parameter.runtime_value.constant.string_value}
        for each in secret.key_to_env:
            key = {**reference, "key": each.secret_key, "optional": secret.optional}
            main["env"].append({"name": each.env_var, "valueFrom": {"secretKeyRef": key}})
    for mount in config.empty_dir_mounts:
        directory = {"medium": mount.medium}
        if mount.size_limit:
            directory["sizeLimit"] = mount.size_limit
        spec["volumes"].append({"name": mount.volume_name, "emptyDir": directory})
        main["volumeMounts"].append({"name": mount.volume_name, "mountPath": mount.mount_path})
    if config.active_deadline_seconds:
        spec["activeDeadlineSeconds"] = config.active_deadline_seconds
    pod["metadata"]["labels"].update(config.pod_metadata.labels)
