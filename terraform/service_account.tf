# What pipelines and jobs run as.
resource "google_service_account" "pipelines" {
  account_id   = "${var.name}-runs"
  display_name = "gpu-pipelines: runs"
  description  = "What pipelines and CustomJobs run as"

  depends_on = [google_project_service.needed]
}

# Start CustomJobs from a pipeline, write metadata, upload models. Vertex AI has no smaller predefined role for these, and
# roles of it cannot be given on less than a project.
resource "google_project_iam_member" "aiplatform" {
  project = var.project
  role    = "roles/aiplatform.user"
  member  = google_service_account.pipelines.member
}

resource "google_project_iam_member" "logging" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.pipelines.member
}

# Read, write and delete files of this bucket (checkpoints are deleted on the way), but not the bucket.
resource "google_storage_bucket_iam_member" "objects" {
  bucket = google_storage_bucket.artifacts.name
  role   = "roles/storage.objectAdmin"
  member = google_service_account.pipelines.member
}

# The SDK and gcsfs ask for the bucket itself (storage.buckets.get), which objectAdmin does not include.
resource "google_storage_bucket_iam_member" "bucket" {
  bucket = google_storage_bucket.artifacts.name
  role   = "roles/storage.legacyBucketReader"
  member = google_service_account.pipelines.member
}

resource "google_artifact_registry_repository_iam_member" "read" {
  for_each = {
    images    = google_artifact_registry_repository.images.name
    pipelines = google_artifact_registry_repository.pipelines.name
  }
  location   = var.region
  repository = each.value
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.pipelines.member
}

# A pipeline starts its CustomJobs as the same account, for which that account must be allowed to act as itself.
resource "google_service_account_iam_member" "acts_as_itself" {
  service_account_id = google_service_account.pipelines.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.pipelines.member
}
