# Vertex AI's own accounts. They come into being with the API; asking for the identity makes sure that they are there.
resource "google_project_service_identity" "aiplatform" {
  provider = google-beta
  project  = var.project
  service  = "aiplatform.googleapis.com"

  depends_on = [google_project_service.needed]
}
