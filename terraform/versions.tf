terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }
    # Only for google_project_service_identity, which the other one does not have.
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 6.0, < 8.0"
    }
  }
}

provider "google" {
  project = var.project
  region  = var.region
}

# With a person's own credentials the API of budgets has to be told whose quota to use.
provider "google" {
  alias                 = "with_quota_of_project"
  project               = var.project
  billing_project       = var.project
  user_project_override = true
}

provider "google-beta" {
  project = var.project
  region  = var.region
}
