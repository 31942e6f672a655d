//! Log lines for a change, one function each.

/// Logged since a truncated file may still parse.
pub(crate) fn policy_removed(route: &str, policy: &str) {
    tracing::warn!(target: "tower_sluice", policy, http.route = route, "configuration changed: a policy was removed and is no longer enforced");
}

pub(crate) fn fields_removed(route: &str, policy: &str, fields: &str) {
    tracing::warn!(target: "tower_sluice", policy, http.route = route, fields, "configuration changed: fields of a policy were removed, and their defaults apply");
}
