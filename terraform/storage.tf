# pipelines/ is what runs leave, and builds/ the sources of images. All else, such as models and data, is kept.
resource "google_storage_bucket" "files" {
  name                        = local.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = var.labels

  dynamic "encryption" {
    for_each = local.encryption_key != null ? [local.encryption_key] : []

    content {
      default_kms_key_name = encryption.value
    }
  }

  # Instead of versions: those would keep every checkpoint that a training overwrote or deleted.
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
        matches_prefix = ["${local.pipelines_folder}/", "${local.builds_folder}/"]
      }
    }
  }

  # What is left of uploads that broke off is billed, and no list shows it.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.needed, google_kms_crypto_key_iam_member.service_agents]
}
