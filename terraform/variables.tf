variable "project" {
  description = "Id of the project. It exists and has billing."
  type        = string
}

variable "region" {
  description = "Region of the bucket, the repositories and the jobs; files and GPUs belong in one region."
  type        = string
  default     = "us-central1"
}

variable "name" {
  description = "What all names begin with."
  type        = string
  default     = "gpu-pipelines"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{3,18}[a-z0-9]$", var.name))
    error_message = "name has 5 to 20 lower-case letters, digits and dashes, from a letter to no dash."
  }
}

variable "bucket" {
  description = "Name of the bucket, which no other bucket of Google Cloud has. Empty for PROJECT-NAME."
  type        = string
  default     = ""
}

variable "image_tag" {
  description = "Tag of the image that steps run in, VERSION-VARIANT; docs/images.md says which GPUs a variant serves."
  type        = string
  default     = "0.1.0-cu126"
}

variable "serving_image_tag" {
  description = "Tag of the image that serves models, VERSION-VARIANT."
  type        = string
  default     = "0.1.0-cpu"
}

variable "users" {
  description = "Who may run, upload and schedule pipelines and jobs, such as [\"group:ml@example.com\"]."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.users : can(regex("^[A-Za-z]+:.", each))])
    error_message = "users are given as Google Cloud names them, such as user:me@example.com or group:ml@example.com."
  }
}

variable "image_builders" {
  description = "Who may build images with Cloud Build, such as [\"group:ml-platform@example.com\"]."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.image_builders : can(regex("^[A-Za-z]+:.", each))])
    error_message = "image_builders are given as Google Cloud names them, such as user:me@example.com."
  }
}

variable "vm_creators" {
  description = "Who may train on VMs of Compute Engine by `gpu-pipelines vm create`, such as [\"group:ml@example.com\"]."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for each in var.vm_creators : can(regex("^[A-Za-z]+:.", each))])
    error_message = "vm_creators are given as Google Cloud names them, such as user:me@example.com."
  }
}

variable "encryption_key" {
  description = "Cloud KMS key of region for the bucket, the repositories, jobs and VMs, by its full name. Empty for Google's."
  type        = string
  default     = ""

  validation {
    condition = var.encryption_key == "" || can(
      regex("^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$", var.encryption_key)
    )
    error_message = "encryption_key is a full name, projects/P/locations/L/keyRings/R/cryptoKeys/K, or empty."
  }
}

variable "artifact_days" {
  description = "Days after which what runs left (artifacts, checkpoints) is deleted; 0 for never."
  type        = number
  default     = 90

  validation {
    condition     = var.artifact_days >= 0 && floor(var.artifact_days) == var.artifact_days
    error_message = "artifact_days is a whole number of days, or 0 for never."
  }
}

variable "soft_delete_days" {
  description = "Days in which a deleted or overwritten file can be restored, 7 to 90, or 0. Until then it is billed."
  type        = number
  default     = 7

  validation {
    condition     = var.soft_delete_days == 0 || (var.soft_delete_days >= 7 && var.soft_delete_days <= 90)
    error_message = "soft_delete_days is 7 to 90, or 0 for none."
  }
}

variable "untagged_image_days" {
  description = "Days after which images without a tag are deleted; 0 for never."
  type        = number
  default     = 30

  validation {
    condition     = var.untagged_image_days >= 0 && floor(var.untagged_image_days) == var.untagged_image_days
    error_message = "untagged_image_days is a whole number of days, or 0 for never."
  }
}

variable "billing_account" {
  description = "Id of the billing account, for a budget alert, such as 012345-6789AB-CDEF01. Empty for no alert."
  type        = string
  default     = ""
}

variable "monthly_budget" {
  description = "What the project may cost in a month, in the currency of the billing account. An alert stops nothing."
  type        = number
  default     = 1000

  validation {
    condition     = var.monthly_budget >= 1 && floor(var.monthly_budget) == var.monthly_budget
    error_message = "monthly_budget is a whole number of at least 1."
  }
}

variable "alert_at" {
  description = "Shares of the budget at which the administrators and users of the billing account get a mail."
  type        = set(number)
  default     = [0.5, 0.9, 1.0]

  validation {
    condition     = alltrue([for share in var.alert_at : share > 0 && share <= 5])
    error_message = "alert_at has shares of the budget, more than 0 and at most 5: 0.5 is half of it, and 50 is no percentage."
  }
}

variable "labels" {
  description = "Labels of the bucket and the repositories."
  type        = map(string)
  default     = {}
}
