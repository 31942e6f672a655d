//! A request as the server sees it.

/// Travels in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The work, in nanoseconds.
    pub(crate) work: u64,
    /// The work is to wait for another server, and occupies no worker.
    pub(crate) is_io: bool,
    /// The work is done in this many equal parts. The head is sent after the first, and the body ends with the last.
    /// Between two parts, others have their turn.
    pub(crate) parts: u32,
    /// Belongs to the top class.
    pub(crate) is_top: bool,
    /// 0 is the greedy tenant.
    pub(crate) tenant: u8,
}

impl Job {
    /// Whether this request is in the top class, which is served before others under overload.
    #[must_use]
    pub const fn is_top(&self) -> bool {
        self.is_top
    }

    /// The work that occupies a worker.
    pub(crate) const fn worker_time(&self) -> u64 {
        if self.is_io { 0 } else { self.work }
    }

    /// If an answer comes later than this after the arrival, the client cannot use it.
    pub(crate) const fn deadline(&self) -> u64 {
        let waits = if self.is_io { self.work } else { 0 };
        waits + 100 * crate::time::MILLISECOND
    }
}
