//! The lines for all partners of a layer, and their shared part.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::PartitionKey;
use tower_sluice::internal::Lock;

use super::line::PartnerLine;
use super::meter::PacerMeter;
use super::pace::Rules;
use super::shared::{SharedPace, Sharing};
use super::statuses::WaitStatuses;
use super::throttle::AdaptiveThrottle;

/// The part that all lines in a layer share.
pub(super) struct SharedByLines {
    pub(super) rules: Rules,
    pub(super) max_wait: Duration,
    /// How many calls may wait in one line.
    pub(super) max_waiters: usize,
    /// How often a call is sent at most.
    pub(super) attempts: u32,
    /// The statuses that are rejections.
    pub(super) statuses: WaitStatuses,
    pub(super) shared: Option<Sharing>,
    /// Not set if calls are sent however many the partners reject.
    pub(super) throttle: Option<AdaptiveThrottle>,
    /// Whether the program says which calls are for one partner. If not, it is their host.
    pub(super) has_own_key: bool,
    pub(super) meter: PacerMeter,
    /// Where the clock of the states in memory begins.
    origin: Instant,
    /// How many calls wait, over all lines.
    waiting: AtomicUsize,
}

impl SharedByLines {
    pub(super) fn new(rules: Rules, max_wait: Duration, max_waiters: usize, attempts: u32) -> Self {
        Self {
            rules,
            max_wait,
            max_waiters,
            attempts,
            statuses: WaitStatuses::default(),
            shared: None,
            throttle: None,
            has_own_key: false,
            meter: PacerMeter::default(),
            origin: Instant::now(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Returns an instant in microseconds, rounded down.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_micros()).unwrap_or(u64::MAX)
    }

    /// Converts microseconds to an instant.
    pub(super) fn instant(&self, micros: u64) -> Instant {
        self.origin + Duration::from_micros(micros)
    }

    pub(super) fn waiting(&self) -> usize {
        // Relaxed, here and below: only the count matters.
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn add_waiter(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.meter.waits(true);
    }

    pub(super) fn remove_waiter(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.meter.waits(false);
    }
}

/// Which line a call is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PartnerKey {
    /// The host that is called, or the value that the program derives from the request.
    Named(PartitionKey),
    /// The requests don't name a host. Each service that the layer made has a line, since each may be for another
    /// partner.
    Service(u64),
}

/// A line per partner.
pub(super) struct Partners {
    pub(super) common: Arc<SharedByLines>,
    lines: Lock<PartnerLines>,
}

struct PartnerLines {
    of: HashMap<PartnerKey, Arc<PartnerLine>>,
    /// How many lines there may be before idle ones are forgotten.
    sweep_at: usize,
}

/// How many partners are remembered while they are idle.
const MAX_IDLE: usize = 4_096;

impl Partners {
    pub(super) fn new(common: SharedByLines) -> Self {
        let lines = PartnerLines { of: HashMap::new(), sweep_at: MAX_IDLE };
        Self { common: Arc::new(common), lines: Lock::new(lines) }
    }

    /// Returns the line of a partner.
    pub(super) fn line(&self, key: &PartnerKey) -> Arc<PartnerLine> {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.of.get(key) {
            return Arc::clone(line);
        }
        if lines.of.len() >= lines.sweep_at {
            lines.forget();
        }
        let shared = match key {
            PartnerKey::Named(key) => self.common.shared.as_ref().map(|sharing| SharedPace::new(sharing, key)),
            // In another process, the service with this number may be for another partner.
            PartnerKey::Service(_) => None,
        };
        let line = Arc::new(PartnerLine::new(Arc::clone(&self.common), key.clone(), shared));
        lines.of.insert(key.clone(), Arc::clone(&line));
        line
    }
}

impl PartnerLines {
    /// Forgets all but half of the lines without calls, beginning with those that are needed least. Calls hold their
    /// line.
    fn forget(&mut self) {
        let idle = self.of.iter().filter(|(_, line)| Arc::strong_count(line) == 1);
        let mut idle: Vec<_> = idle.map(|(key, line)| (line.need(), key.clone())).collect();
        let forgotten = idle.len().saturating_sub(MAX_IDLE / 2);
        idle.sort_unstable_by_key(|(need, _)| *need);
        for (_, key) in &idle[..forgotten] {
            self.of.remove(key);
        }
        self.sweep_at = MAX_IDLE.max(self.of.len() + MAX_IDLE / 2);
    }
}
