# `terraform destroy` leaves them on: others may use them too.
resource "google_project_service" "needed" {
  for_each = toset(concat(
    [
      "aiplatform.googleapis.com",
      "artifactregistry.googleapis.com",
      "cloudbuild.googleapis.com",
      "cloudquotas.googleapis.com",
      "cloudresourcemanager.googleapis.com",
      "compute.googleapis.com",
      "iam.googleapis.com",
      "logging.googleapis.com",
      "monitoring.googleapis.com",
      "storage.googleapis.com",
    ],
    local.encryption_key != null ? ["cloudkms.googleapis.com"] : [],
    local.needs_budget_alert ? ["billingbudgets.googleapis.com", "cloudbilling.googleapis.com"] : [],
  ))
  service            = each.value
  disable_on_destroy = false
}
