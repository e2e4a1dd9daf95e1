resource "google_artifact_registry_repository" "images" {
  location      = var.region
  repository_id = local.images
  description   = "Images of gpu-pipelines"
  format        = "DOCKER"
  kms_key_name  = local.encryption_key
  labels        = var.labels

  # A tag that is pushed again leaves the image it named before without one.
  dynamic "cleanup_policies" {
    for_each = var.untagged_image_days > 0 ? [var.untagged_image_days] : []

    content {
      id     = "untagged"
      action = "DELETE"

      condition {
        tag_state  = "UNTAGGED"
        older_than = "${cleanup_policies.value * 24 * 60 * 60}s"
      }
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.needed, google_kms_crypto_key_iam_member.service_agents]
}

resource "google_artifact_registry_repository" "pipelines" {
  location      = var.region
  repository_id = local.pipelines
  description   = "Compiled pipelines of gpu-pipelines"
  format        = "KFP"
  kms_key_name  = local.encryption_key
  labels        = var.labels

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.needed, google_kms_crypto_key_iam_member.service_agents]
}
