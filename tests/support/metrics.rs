//! Captures metrics, and reads them from the Prometheus text.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// The metrics that this thread records, through the `metrics-exporter-prometheus` crate.
pub struct Metrics {
    exporter: PrometheusHandle,
    _recorder: metrics::LocalRecorderGuard<'static>,
}

const PREFIX: &str = "tower_sluice_rate_limiting_";

impl Metrics {
    pub fn record() -> Self {
        let recorder = PrometheusBuilder::new()
            .with_recommended_naming(true)
            .set_buckets_for_metric(Matcher::Prefix("tower_sluice".to_owned()), &[0.15, 1_000.0])
            .unwrap()
            .build_recorder();
        let recorder = Box::leak(Box::new(recorder));
        Self { exporter: recorder.handle(), _recorder: metrics::set_default_local_recorder(recorder) }
    }

    pub fn render(&self) -> String {
        self.exporter.render()
    }

    /// All series that are not zero, as exported, without their names' common prefix.
    pub fn series(&self) -> BTreeMap<String, String> {
        let text = self.render();
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| line.rsplit_once(' ').unwrap());
        series
            .map(|(name, value)| (name.strip_prefix(PREFIX).expect(name).to_owned(), value.to_owned()))
            .filter(|(_, value)| value != "0")
            .collect()
    }

    /// The request counts, by `policy result`.
    pub fn results(&self) -> Vec<(String, u64)> {
        let label = |name: &str, label: &str| {
            name.split(&['{', ',', '}'][..])
                .find_map(|part| Some(part.strip_prefix(label)?.trim_matches(&['=', '"'][..]).to_owned()))
        };
        let result = |(name, value): (String, String)| {
            let policy = label(name.strip_prefix("requests_total")?, "policy=")?;
            Some((format!("{policy} {}", label(&name, "result=")?), value.parse().unwrap()))
        };
        self.series().into_iter().filter_map(result).collect()
    }

    #[track_caller]
    pub fn assert_results(&self, expected: &[(&str, u64)]) {
        let expected: BTreeMap<_, _> = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(self.results().into_iter().collect::<BTreeMap<_, _>>(), expected);
    }

    /// The value of one series; `0` if it has not changed.
    pub fn of(&self, name: &str) -> String {
        self.series().remove(name).unwrap_or_else(|| "0".to_owned())
    }
}
