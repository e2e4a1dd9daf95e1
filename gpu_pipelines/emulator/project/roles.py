"""The permissions of Google's predefined roles, as far as the emulator checks them; patterns of permissions.

https://cloud.google.com/iam/docs/understanding-roles. The basic roles lack what the emulator does not have.
"""

from __future__ import annotations

_READ_STORAGE = ("storage.objects.get", "storage.objects.list")
_READ_REGISTRY = (
    "artifactregistry.*.get",
    "artifactregistry.*.list",
    "artifactregistry.repositories.downloadArtifacts",
)
_WRITE_REGISTRY = (
    *_READ_REGISTRY,
    "artifactregistry.repositories.uploadArtifacts",
    "artifactregistry.tags.create",
    "artifactregistry.tags.update",
)

ROLES: dict[str, tuple[str, ...]] = {
    "roles/owner": ("*",),
    "roles/editor": ("*",),
    "roles/viewer": ("*.get", "*.list"),
    "roles/aiplatform.admin": ("aiplatform.*",),
    "roles/aiplatform.user": ("aiplatform.*",),
    "roles/aiplatform.viewer": ("aiplatform.*.get", "aiplatform.*.list"),
    "roles/aiplatform.customCodeServiceAgent": (
        "aiplatform.*",
        "storage.*",
        *_READ_REGISTRY,
        "logging.logEntries.create",
        "bigquery.*",
    ),
    "roles/artifactregistry.reader": _READ_REGISTRY,
    "roles/artifactregistry.writer": _WRITE_REGISTRY,
    "roles/artifactregistry.repoAdmin": (
        *_WRITE_REGISTRY,
        "artifactregistry.*.delete",
        "artifactregistry.*.deleteArtifacts",
    ),
    "roles/artifactregistry.admin": ("artifactregistry.*",),
    "roles/bigquery.admin": ("bigquery.*",),
    "roles/bigquery.dataViewer": (
        "bigquery.datasets.get",
        "bigquery.tables.get",
        "bigquery.tables.list",
        "bigquery.tables.getData",
    ),
    "roles/bigquery.dataEditor": (
        "bigquery.datasets.create",
        "bigquery.datasets.get",
        "bigquery.tables.*",
    ),
    "roles/bigquery.readSessionUser": ("bigquery.readsessions.*",),
    "roles/bigquery.user": (
        "bigquery.datasets.create",
        "bigquery.datasets.get",
        "bigquery.jobs.create",
        "bigquery.readsessions.*",
        "bigquery.tables.list",
    ),
    "roles/bigquery.jobUser": ("bigquery.jobs.create",),
    "roles/iam.serviceAccountUser": (
        "iam.serviceAccounts.actAs",
        "iam.serviceAccounts.get",
        "iam.serviceAccounts.list",
    ),
    "roles/logging.logWriter": ("logging.logEntries.create",),
    "roles/logging.viewer": ("logging.*.get", "logging.*.list"),
    "roles/storage.admin": ("storage.*",),
    "roles/storage.bucketViewer": ("storage.buckets.get", "storage.buckets.list"),
    "roles/storage.legacyBucketReader": ("storage.buckets.get", "storage.objects.list"),
    "roles/storage.objectAdmin": ("storage.objects.*",),
    "roles/storage.objectCreator": ("storage.objects.create",),
    "roles/storage.objectUser": (
        *_READ_STORAGE,
        "storage.objects.create",
        "storage.objects.delete",
        "storage.objects.update",
    ),
    "roles/storage.objectViewer": _READ_STORAGE,
}
