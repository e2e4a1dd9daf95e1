# What people need for `gpu-pipelines vm create`: create, start, stop and delete VMs, look at their serial port and log.
# Compute Engine gives this role on a project, not on VMs that are not there yet.
locals {
  roles_of_vm_creators = ["roles/compute.instanceAdmin.v1", "roles/logging.viewer"]
}

resource "google_project_iam_member" "vm_creators" {
  for_each = { for pair in setproduct(var.vm_creators, local.roles_of_vm_creators) : "${pair[0]} ${pair[1]}" => pair }
  project  = var.project
  role     = each.value[1]
  member   = each.value[0]

  depends_on = [google_project_service.needed]
}

# The VM runs as the account that pipelines and jobs run as.
resource "google_service_account_iam_member" "vm_creators_act_as_runner" {
  for_each           = var.vm_creators
  service_account_id = google_service_account.runner.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}
