# What Cloud Build runs as: it reads the sources of a build, pushes images, and writes its log.
resource "google_service_account" "builder" {
  account_id   = local.builder
  display_name = "gpu-pipelines: what Cloud Build runs as"

  depends_on = [google_project_service.needed]
}

resource "google_storage_bucket_iam_member" "builder_reads_sources" {
  bucket = google_storage_bucket.files.name
  role   = "roles/storage.objectViewer"
  member = google_service_account.builder.member

  condition {
    title      = "sources of builds"
    expression = local.is_source_of_a_build
  }
}

resource "google_artifact_registry_repository_iam_member" "builder_pushes" {
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.builder.member
}

resource "google_project_iam_member" "builder_writes_logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.builder.member
}

resource "google_project_iam_member" "image_builders_build" {
  for_each = var.image_builders
  project  = var.project
  role     = "roles/cloudbuild.builds.editor"
  member   = each.value

  depends_on = [google_project_service.needed]
}

resource "google_service_account_iam_member" "image_builders_act_as_builder" {
  for_each           = var.image_builders
  service_account_id = google_service_account.builder.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

# They leave new archives in builds/, and may neither read nor change any other file.
resource "google_storage_bucket_iam_member" "image_builders_stage_sources" {
  for_each = var.image_builders
  bucket   = google_storage_bucket.files.name
  role     = "roles/storage.objectCreator"
  member   = each.value

  condition {
    title      = "sources of builds"
    expression = local.is_source_of_a_build
  }
}
