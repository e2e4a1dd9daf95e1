variable "project" {
  description = "Id of the project, which exists and has billing."
  type        = string
}

variable "region" {
  description = "Region of the bucket, the repositories and the jobs, such as us-central1. Files and GPUs belong together."
  type        = string
  default     = "us-central1"
}

variable "name" {
  description = "First part of the names of all that is made, at most 20 lower-case letters, digits and dashes."
  type        = string
  default     = "gpu-pipelines"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{3,18}[a-z0-9]$", var.name))
    error_message = "name has 5 to 20 lower-case letters, digits and dashes, begins with a letter and does not end with a dash."
  }
}

variable "bucket" {
  description = "Name of the bucket, unique in all of Google Cloud. Empty for PROJECT-NAME."
  type        = string
  default     = ""
}

variable "users" {
  description = "Who may start pipelines and jobs, such as [\"user:a@example.com\", \"group:ml@example.com\"]."
  type        = set(string)
  default     = []
}

variable "image_pushers" {
  description = "Service accounts that Cloud Build runs as, such as [\"serviceAccount:builder@PROJECT.iam.gserviceaccount.com\"]; they may push images."
  type        = set(string)
  default     = []
}

variable "artifact_days" {
  description = "Days after which files below pipelines/, the artifacts and checkpoints of runs, are deleted; 0 keeps them."
  type        = number
  default     = 90

  validation {
    condition     = var.artifact_days >= 0 && floor(var.artifact_days) == var.artifact_days
    error_message = "artifact_days is a whole number of days, or 0."
  }
}

variable "soft_delete_days" {
  description = "Days in which a deleted or overwritten file can be restored, 7 to 90; 0 for not at all. These files cost what others cost."
  type        = number
  default     = 7

  validation {
    condition     = var.soft_delete_days == 0 || (var.soft_delete_days >= 7 && var.soft_delete_days <= 90)
    error_message = "soft_delete_days is 0, or 7 to 90."
  }
}

variable "untagged_image_days" {
  description = "Days after which images without a tag are deleted."
  type        = number
  default     = 30
}

variable "billing_account" {
  description = "Id of the billing account for a budget alert, such as 012345-6789AB-CDEF01. Empty for none."
  type        = string
  default     = ""
}

variable "monthly_budget" {
  description = "Amount of the budget per month, in the currency of the billing account. It alerts; it stops nothing."
  type        = number
  default     = 1000
}

variable "budget_alerts_at" {
  description = "Shares of the budget at which a mail is sent to the billing account's administrators and users."
  type        = list(number)
  default     = [0.5, 0.9, 1.0]
}

variable "labels" {
  description = "Labels of all that takes labels."
  type        = map(string)
  default     = {}
}
