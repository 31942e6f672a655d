//! How long a thread is busy, which other programs on the machine hardly change.

use std::time::Duration;

/// Returns this thread's processor time.
#[cfg(target_os = "linux")]
pub(crate) fn busy_for() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Returns the elapsed time, where the thread's processor time is not known.
#[cfg(not(target_os = "linux"))]
pub(crate) fn busy_for() -> Duration {
    static BEGUN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    BEGUN.elapsed()
}
