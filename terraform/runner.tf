# What pipelines and jobs run as.
resource "google_service_account" "runner" {
  account_id   = local.runner
  display_name = "gpu-pipelines: what pipelines and jobs run as"

  depends_on = [google_project_service.needed]
}

# To start CustomJobs from a pipeline, record artifacts and upload models. Vertex AI has no smaller predefined role for
# all three, and its roles are given on a project, not on less.
resource "google_project_iam_member" "runner_uses_vertex_ai" {
  project = var.project
  role    = "roles/aiplatform.user"
  member  = google_service_account.runner.member
}

resource "google_project_iam_member" "runner_writes_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.runner.member
}

# objectUser: reads, writes and deletes files (superseded checkpoints), of this bucket alone; not who may use them.
# legacyBucketReader: adds storage.buckets.get, which Google's SDK asks for before it stages files.
resource "google_storage_bucket_iam_member" "runner_uses_files" {
  for_each = toset(["roles/storage.objectUser", "roles/storage.legacyBucketReader"])
  bucket   = google_storage_bucket.files.name
  role     = each.value
  member   = google_service_account.runner.member
}

# Compiled pipelines for schedules, images for those who pull as this account.
resource "google_artifact_registry_repository_iam_member" "runner_reads" {
  for_each = {
    images    = google_artifact_registry_repository.images.name
    pipelines = google_artifact_registry_repository.pipelines.name
  }
  location   = var.region
  repository = each.value
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.runner.member
}

# A pipeline that runs as this account starts its CustomJobs as the same, and must be allowed to act as it.
resource "google_service_account_iam_member" "runner_acts_as_itself" {
  service_account_id = google_service_account.runner.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.runner.member
}

# Vertex AI pulls the image as its own service agent, whatever the job runs as. Asking for the agent makes it, too: in a
# new project there is none before the first job.
resource "google_project_service_identity" "vertex_ai" {
  provider = google-beta
  project  = var.project
  service  = "aiplatform.googleapis.com"

  depends_on = [google_project_service.needed]
}

resource "google_artifact_registry_repository_iam_member" "vertex_ai_pulls" {
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = google_project_service_identity.vertex_ai.member
}
