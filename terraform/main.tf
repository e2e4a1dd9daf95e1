locals {
  bucket = var.bucket != "" ? var.bucket : "${var.project}-${var.name}"

  services = [
    "aiplatform.googleapis.com",
    "artifactregistry.googleapis.com",
    "cloudbuild.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "serviceusage.googleapis.com",
    "storage.googleapis.com",
  ]
  budget_services = var.billing_account != "" ? ["billingbudgets.googleapis.com"] : []
}

data "google_project" "this" {
  project_id = var.project
}

# Others may use them too, so `terraform destroy` leaves them on.
resource "google_project_service" "needed" {
  for_each           = toset(concat(local.services, local.budget_services))
  service            = each.value
  disable_on_destroy = false
}
