resource "google_artifact_registry_repository" "images" {
  location      = var.region
  repository_id = "${var.name}-images"
  description   = "Images that the steps of gpu-pipelines run in"
  format        = "DOCKER"
  labels        = var.labels

  cleanup_policies {
    id     = "untagged"
    action = "DELETE"

    condition {
      tag_state  = "UNTAGGED"
      older_than = "${var.untagged_image_days * 24 * 60 * 60}s"
    }
  }

  depends_on = [google_project_service.needed]
}

# Compiled pipelines; `gpu-pipelines upload` puts them here, schedules are made from them.
resource "google_artifact_registry_repository" "pipelines" {
  location      = var.region
  repository_id = "${var.name}-pipelines"
  description   = "Compiled pipelines of gpu-pipelines"
  format        = "KFP"
  labels        = var.labels

  depends_on = [google_project_service.needed]
}
