//! Each documented metric is watched: in the dashboard, or in an alert.

use std::fs;
use std::path::Path;

#[test]
fn each_metric_is_watched() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let guide = read("docs/guide/monitoring.md");
    let rows = guide.lines().filter(|line| {
        ["counter", "gauge", "histogram", "as above"]
            .iter()
            .any(|kind| line.split(" | ").nth(1).is_some_and(|cell| cell.contains(kind)))
    });
    let names: Vec<_> =
        rows.filter_map(|row| row.split(" | ").next()).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() >= 30, "{names:?}");
    let watched = read("deploy/dashboard.json") + &read("deploy/alerts.yml");
    let is_watched = |name: &&str| watched.contains(&format!("tower_sluice_rate_limiting_{name}"));
    let missing: Vec<_> = names.into_iter().filter(|name| !is_watched(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
