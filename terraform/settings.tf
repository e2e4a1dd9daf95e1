# Names, from the variables alone, and what goes into gpu-pipelines.yaml.
locals {
  bucket             = var.bucket != "" ? var.bucket : "${var.project}-${var.name}"
  images             = "${var.name}-images"
  pipelines          = "${var.name}-pipelines"
  runner             = "${var.name}-runs"
  builder            = "${var.name}-builds"
  account_domain     = "${var.project}.iam.gserviceaccount.com"
  image_repository   = "${var.region}-docker.pkg.dev/${var.project}/${local.images}"
  pipelines_folder   = "pipelines"
  builds_folder      = "builds"
  needs_budget_alert = var.billing_account != ""
  encryption_key     = var.encryption_key != "" ? var.encryption_key : null

  # Of a condition in IAM.
  is_source_of_a_build = "resource.name.startsWith(\"projects/_/buckets/${local.bucket}/objects/${local.builds_folder}/\")"

  settings = merge({
    project         = var.project
    region          = var.region
    pipeline_root   = "gs://${local.bucket}/${local.pipelines_folder}"
    image           = "${local.image_repository}/steps:${var.image_tag}"
    serving_image   = "${local.image_repository}/serving:${var.serving_image_tag}"
    repository      = "https://${var.region}-kfp.pkg.dev/${var.project}/${local.pipelines}"
    service_account = "${local.runner}@${local.account_domain}"
  }, local.encryption_key != null ? { encryption_key = local.encryption_key } : {})
}

output "settings" {
  description = "What gpu-pipelines.yaml holds: terraform output -raw settings > gpu-pipelines.yaml."
  value       = yamlencode(local.settings)

  precondition {
    condition     = var.encryption_key == "" || can(regex("/locations/${var.region}/", var.encryption_key))
    error_message = "encryption_key is in another location than region: bucket, repositories and jobs need it in theirs."
  }
}

output "image_repository" {
  description = "Where images are pushed to, _REPOSITORY of cloudbuild.yaml."
  value       = local.image_repository
}

output "builder" {
  description = "What Cloud Build runs as, --service-account."
  value       = "projects/${var.project}/serviceAccounts/${local.builder}@${local.account_domain}"
}

output "build_staging" {
  description = "Where gcloud leaves the sources of a build, --gcs-source-staging-dir."
  value       = "gs://${local.bucket}/${local.builds_folder}"
}
