resource "google_artifact_registry_repository" "images" {
  location      = var.region
  repository_id = local.images
  description   = "Images of gpu-pipelines"
  format        = "DOCKER"
  labels        = var.labels

  # A tag that is pushed again leaves the image it named before without one.
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

resource "google_artifact_registry_repository" "pipelines" {
  location      = var.region
  repository_id = local.pipelines
  description   = "Compiled pipelines of gpu-pipelines"
  format        = "KFP"
  labels        = var.labels

  depends_on = [google_project_service.needed]
}
