//! Traffic shapes: when one client's requests arrive.

/// When the picture ends, in milliseconds.
pub(crate) const END: u64 = 4_000;

/// One client's requests, by the millisecond at which they arrive.
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) arrivals: Vec<u64>,
}

impl Traffic {
    /// Returns four shapes on which the algorithms differ, at limits of ten per second.
    pub(crate) fn all() -> [Self; 4] {
        let every = |step: usize, from: u64| (from..END).step_by(step);
        let at_once = |count: usize, at: u64| std::iter::repeat_n(at, count);
        [
            Self { name: "steady", title: "Five per second: half the limit", arrivals: every(200, 0).collect() },
            Self {
                name: "burst",
                title: "Twenty at once, then five per second",
                arrivals: at_once(20, 1_200).chain(every(200, 1_400)).collect(),
            },
            Self { name: "overload", title: "Twenty per second: twice the limit", arrivals: every(50, 0).collect() },
            Self {
                name: "edge",
                title: "Ten before a window's edge, ten after it",
                arrivals: at_once(10, 1_850).chain(at_once(10, 2_100)).collect(),
            },
        ]
    }
}
