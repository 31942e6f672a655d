//! [`Attempts`]: a read and a conditional write, repeated while others change the key in between.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::backend::GaveUp;
use super::backoff;

/// Paces a [`Backend`](super::Backend)'s attempts at one transition. An attempt reads a key, and writes it if no other
/// process has changed it since.
///
/// An attempt is lost if another process was faster, so that process has made progress. The next one begins after a
/// random pause. It lasts up to an eighth of the time since the first attempt, or up to a millisecond if that is more.
/// This is short beside calls over a network, so that the key is written at nearly the highest possible rate. The
/// deadline bounds the attempts even if a store's writes never apply.
///
/// ```
/// use tower_sluice::store::remote::{Attempts, CallLimits, GaveUp};
///
/// async fn charge(limits: CallLimits) -> Result<(), GaveUp> {
///     let mut attempts = Attempts::new(limits.deadline);
///     while !swap().await {
///         attempts.lost().await?;
///     }
///     Ok(())
/// }
/// # async fn swap() -> bool { true }
/// ```
#[derive(Debug)]
pub struct Attempts {
    deadline: Instant,
    first: Instant,
    present: Instant,
}

/// The timers' resolution.
const TIMER: Duration = Duration::from_millis(1);

impl Attempts {
    /// Begins the first attempt. The last attempt must have ended by the deadline.
    #[must_use]
    pub fn new(deadline: Instant) -> Self {
        let now = Instant::now();
        Self { deadline, first: now, present: now }
    }

    /// Returns after a pause, at the beginning of the next attempt. The present one was lost.
    ///
    /// # Errors
    ///
    /// [`GaveUp::Contention`] if too little time is left, because the next attempt would probably charge a request that
    /// does not wait any more. It needs the time that the present one took, plus a quarter and a millisecond.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub async fn lost(&mut self) -> Result<(), GaveUp> {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.present);
        let needed = took + took / 4 + TIMER;
        let left = self.deadline.saturating_duration_since(now).saturating_sub(needed);
        if left.is_zero() {
            return Err(GaveUp::Contention);
        }
        let longest = TIMER.max(now.saturating_duration_since(self.first) / 8);
        sleep(backoff::draw_up_to(longest.min(left))).await;
        self.present = Instant::now();
        Ok(())
    }
}
