# What people need: users, to run, upload, schedule and follow; vm_creators, for `gpu-pipelines vm create`; image_builders,
# beside builder.tf. Files and repositories are granted on the resource.
locals {
  # cloudquotas.viewer is for `accelerators quota` and lists of machines, which leave out those without quota.
  # serviceUsageConsumer is for credentials of a person, which name a project whose quota they use, and for
  # `gpu-pipelines doctor`, which looks whether the APIs are on.
  roles_of_users = [
    "roles/aiplatform.user",
    "roles/cloudquotas.viewer",
    "roles/logging.viewer",
    "roles/serviceusage.serviceUsageConsumer",
  ]
  # To create, start, stop and delete VMs, look at their serial port and log. Compute Engine gives its role on a
  # project, not on VMs that are not there yet.
  roles_of_vm_creators = ["roles/compute.instanceAdmin.v1", "roles/logging.viewer"]
  # Without it gcloud builds is refused; cloudbuild.builds.editor, in builder.tf, does not have it.
  roles_of_image_builders = ["roles/serviceusage.serviceUsageConsumer"]
  # legacyBucketReader is for storage.buckets.get, as in runner.tf.
  roles_of_users_on_bucket = ["roles/storage.objectUser", "roles/storage.legacyBucketReader"]
  # `gcloud builds submit` looks whether the bucket is there.
  roles_of_image_builders_on_bucket = ["roles/storage.legacyBucketReader"]
}

# One resource for all: with two, a role that somebody has in two ways would go with the first of them.
resource "google_project_iam_member" "users" {
  for_each = { for pair in setunion(
    setproduct(var.users, local.roles_of_users),
    setproduct(var.vm_creators, local.roles_of_vm_creators),
    setproduct(var.image_builders, local.roles_of_image_builders),
  ) : "${pair[0]} ${pair[1]}" => pair }
  project = var.project
  role    = each.value[1]
  member  = each.value[0]

  depends_on = [google_project_service.needed]
}

# VMs run as the account that pipelines and jobs run as.
resource "google_service_account_iam_member" "users_act_as_runner" {
  for_each           = setunion(var.users, var.vm_creators)
  service_account_id = google_service_account.runner.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

resource "google_storage_bucket_iam_member" "users_use_files" {
  for_each = { for pair in setunion(
    setproduct(var.users, local.roles_of_users_on_bucket),
    setproduct(var.image_builders, local.roles_of_image_builders_on_bucket),
  ) : "${pair[0]} ${pair[1]}" => pair }
  bucket = google_storage_bucket.files.name
  role   = each.value[1]
  member = each.value[0]
}

resource "google_artifact_registry_repository_iam_member" "users_upload_pipelines" {
  for_each   = var.users
  location   = var.region
  repository = google_artifact_registry_repository.pipelines.name
  role       = "roles/artifactregistry.writer"
  member     = each.value
}
