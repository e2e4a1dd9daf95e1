# A budget names a project by its number.
data "google_project" "this" {
  count      = local.needs_budget_alert ? 1 : 0
  project_id = var.project

  depends_on = [google_project_service.needed]
}

resource "google_billing_budget" "monthly" {
  count           = local.needs_budget_alert ? 1 : 0
  provider        = google.with_quota_of_project
  billing_account = var.billing_account
  display_name    = "${var.name} in ${var.project}"

  budget_filter {
    projects = ["projects/${data.google_project.this[0].number}"]
  }

  amount {
    specified_amount {
      units = tostring(var.monthly_budget)
    }
  }

  dynamic "threshold_rules" {
    for_each = var.alert_at

    content {
      threshold_percent = threshold_rules.value
    }
  }

  depends_on = [google_project_service.needed]
}
