# With a key of one's own: what encrypts and decrypts with it is the service agent of each service that keeps something.
data "google_storage_project_service_account" "this" {
  count   = local.encryption_key != null ? 1 : 0
  project = var.project

  depends_on = [google_project_service.needed]
}

data "google_project" "with_key" {
  count      = local.encryption_key != null ? 1 : 0
  project_id = var.project

  depends_on = [google_project_service.needed]
}

resource "google_project_service_identity" "artifact_registry" {
  count    = local.encryption_key != null ? 1 : 0
  provider = google-beta
  project  = var.project
  service  = "artifactregistry.googleapis.com"

  depends_on = [google_project_service.needed]
}

# The key may be another project's: whoever applies this may grant roles on it.
resource "google_kms_crypto_key_iam_member" "service_agents" {
  for_each = local.encryption_key == null ? {} : {
    artifact_registry = google_project_service_identity.artifact_registry[0].member
    compute_engine    = "serviceAccount:service-${data.google_project.with_key[0].number}@compute-system.iam.gserviceaccount.com"
    storage           = data.google_storage_project_service_account.this[0].member
    vertex_ai         = google_project_service_identity.vertex_ai.member
  }
  crypto_key_id = local.encryption_key
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = each.value
}
