# Below pipelines/: what runs leave (pipeline_root). Below models/: exported models, which are kept.
resource "google_storage_bucket" "artifacts" {
  name                        = local.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false
  labels                      = var.labels

  # Soft delete restores what was deleted by mistake. Versioning would keep every overwritten checkpoint for good.
  soft_delete_policy {
    retention_duration_seconds = var.soft_delete_days * 24 * 60 * 60
  }

  dynamic "lifecycle_rule" {
    for_each = var.artifact_days > 0 ? [var.artifact_days] : []

    content {
      action {
        type = "Delete"
      }
      condition {
        age            = lifecycle_rule.value
        matches_prefix = ["pipelines/"]
      }
    }
  }

  # Parts of uploads that were broken off are billed and seen by nobody.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  depends_on = [google_project_service.needed]
}
