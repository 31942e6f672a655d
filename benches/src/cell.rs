//! The cells to measure. Each is measured in its own process.

use std::fmt;

use crate::app;
use crate::layer::Row;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    Nothing,
    Governor,
    Ours,
    Ideal,
    OursDyn,
    OursSystemClock,
    Sliding,
    Fixed,
    AxumGcra,
    Ratelimit,
    LeakyBucket,
    QuickCache,
    Moka,
}

impl Of {
    pub const ALL: [Self; 13] = [
        Self::Nothing,
        Self::Governor,
        Self::Ours,
        Self::Ideal,
        Self::OursDyn,
        Self::OursSystemClock,
        Self::Sliding,
        Self::Fixed,
        Self::AxumGcra,
        Self::Ratelimit,
        Self::LeakyBucket,
        Self::QuickCache,
        Self::Moka,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "empty-loop",
            Self::Governor => "governor",
            Self::Ours => "ours",
            Self::Ideal => "hand-written-ideal",
            Self::OursDyn => "ours-dyn",
            Self::OursSystemClock => "ours-system-clock",
            Self::Sliding => "ours-sliding-window",
            Self::Fixed => "ours-fixed-window",
            Self::AxumGcra => "axum_gcra",
            Self::Ratelimit => "ratelimit",
            Self::LeakyBucket => "leaky-bucket",
            Self::QuickCache => "quick_cache",
            Self::Moka => "moka",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    U64,
    Ip,
    Text,
}

impl KeyType {
    pub const ALL: [Self; 3] = [Self::U64, Self::Ip, Self::Text];

    pub const fn name(self) -> &'static str {
        match self {
            Self::U64 => "u64",
            Self::Ip => "ip",
            Self::Text => "string",
        }
    }
}

/// The questions to a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    pub key: KeyType,
    pub keys: u64,
    pub zipf: bool,
    pub threads: u64,
    pub rejected: bool,
}

pub const HOT: u64 = 1;
pub const THOUSAND: u64 = 1_000;
pub const MILLION: u64 = 1_000_000;

impl Work {
    pub const fn uniform(key: KeyType, keys: u64) -> Self {
        Self { key, keys, zipf: false, threads: 1, rejected: false }
    }

    pub const fn rejected(self) -> Self {
        Self { rejected: true, ..self }
    }

    pub const fn zipf(self) -> Self {
        Self { zipf: true, ..self }
    }

    pub const fn threads(self, threads: u64) -> Self {
        Self { threads, ..self }
    }

    /// All work, the quick ones first.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for key in KeyType::ALL {
            all.extend([Self::uniform(key, HOT), Self::uniform(key, HOT).rejected()]);
            all.extend([THOUSAND, 100 * THOUSAND].map(|keys| Self::uniform(key, keys)));
        }
        let hot = Self::uniform(KeyType::Ip, HOT).threads(2);
        all.extend([hot, hot.rejected()]);
        for key in KeyType::ALL {
            all.extend([Self::uniform(key, MILLION), Self::uniform(key, MILLION).zipf()]);
        }
        let many = Self::uniform(KeyType::Ip, MILLION).threads(2);
        all.extend([many, many.zipf()]);
        all.extend(KeyType::ALL.map(|key| Self::uniform(key, 10 * MILLION)));
        all
    }

    /// The limiters that do it. The reference is the first after the empty loop, and is asked right before ours.
    pub fn done_by(self) -> Vec<Of> {
        let mut by = vec![Of::Nothing, Of::Governor, Of::Ours];
        let one_thread = self.threads == 1;
        let ip = self.key == KeyType::Ip;
        let million = self.keys == MILLION && !self.zipf;
        if self.key != KeyType::U64 && (self.keys == HOT && ip || self.keys >= MILLION) {
            by.push(Of::Ideal);
        }
        if one_thread && ip && (self.keys == HOT || million) {
            by.extend([Of::OursDyn, Of::OursSystemClock, Of::Sliding, Of::Fixed]);
        }
        if self.keys <= MILLION && (ip || self.keys == THOUSAND || million) {
            by.push(Of::AxumGcra);
        }
        if ip && self.keys == HOT {
            by.extend([Of::Ratelimit, Of::LeakyBucket]);
        }
        if one_thread && self.key != KeyType::U64 && (self.keys == THOUSAND || million) {
            by.extend([Of::QuickCache, Of::Moka]);
        }
        by
    }

    /// How often it is repeated: long work less often.
    pub const fn repetitions(self) -> usize {
        match self.keys {
            ..MILLION => 5,
            MILLION => 3,
            _ => 2,
        }
    }

    /// Whether decisions are also timed one by one.
    pub const fn isolated(self) -> bool {
        self.keys >= MILLION && self.threads == 1 && !self.zipf
    }
}

/// As in `ip/1000000/uniform/1T/admitted`.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, keys, zipf, threads, rejected } = *self;
        let order = if zipf { "zipf" } else { "uniform" };
        let regime = if rejected { "rejected" } else { "admitted" };
        write!(f, "{}/{}/{order}/{threads}T/{regime}", key.name(), short(keys))
    }
}

/// `1`, `1k`, `1M`.
pub fn short(count: u64) -> String {
    match count {
        0..THOUSAND => count.to_string(),
        THOUSAND..MILLION => format!("{}k", count / THOUSAND),
        _ => format!("{}M", count / MILLION),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Two threads ask for one hot key: checks that exactly the burst is admitted.
    Exact(Of, KeyType),
    Decide(Of, Work),
    /// Each decision timed by itself while fresh keys arrive.
    Tail(Of),
    /// Each decision timed by itself while a limiter with this many keys is replaced.
    Change(Of, u64),
    /// Keys lost in a half-full table.
    Lost,
    /// Keys admitted twice when two threads first touch them.
    FirstTouch,
    /// Takes and releases one unit for one of this many keys.
    #[cfg(feature = "servers")]
    InFlight(crate::in_flight::By, u64),
    Layer,
    /// Instructions per request.
    Instructions,
    /// An axum app under load.
    App,
}

impl Cell {
    pub fn all() -> Vec<Self> {
        // The cells with many rows in little time come first, so that all their repetitions are done if time runs out.
        let mut all = vec![Self::Layer, Self::Instructions, Self::App];
        all.extend(Self::exact());
        all.extend(
            Work::all().into_iter().flat_map(|work| work.done_by().into_iter().map(move |of| Self::Decide(of, work))),
        );
        all.extend(Self::TAILS);
        all.extend(Self::CHANGES);
        #[cfg(feature = "servers")]
        all.extend(Self::IN_FLIGHT);
        all.extend([Self::Lost, Self::FirstTouch]);
        all
    }

    pub const TAILS: [Self; 4] =
        [Self::Tail(Of::Nothing), Self::Tail(Of::Governor), Self::Tail(Of::Ours), Self::Tail(Of::AxumGcra)];

    #[cfg(feature = "servers")]
    pub const IN_FLIGHT: [Self; 5] = {
        use crate::in_flight::By::{Ours, Overload, Semaphores};
        [
            Self::InFlight(Ours, HOT),
            Self::InFlight(Overload, HOT),
            Self::InFlight(Semaphores, HOT),
            Self::InFlight(Ours, MILLION),
            Self::InFlight(Semaphores, MILLION),
        ]
    };

    pub const CHANGES: [Self; 6] = [
        Self::Change(Of::Ours, MILLION),
        Self::Change(Of::Ours, 10 * MILLION),
        Self::Change(Of::Fixed, MILLION),
        Self::Change(Of::Fixed, 10 * MILLION),
        Self::Change(Of::Sliding, MILLION),
        Self::Change(Of::Sliding, 10 * MILLION),
    ];

    fn exact() -> Vec<Self> {
        let limiters = Of::ALL.into_iter().filter(|of| *of != Of::Nothing);
        limiters.flat_map(|of| KeyType::ALL.map(|key| Self::Exact(of, key))).collect()
    }

    pub fn repetitions(self) -> usize {
        match self {
            Self::Decide(_, work) => work.repetitions(),
            Self::Tail(_) | Self::Change(..) => 3,
            #[cfg(feature = "servers")]
            Self::InFlight(..) => 3,
            Self::Layer | Self::App => 5,
            Self::Exact(..) | Self::Lost | Self::FirstTouch | Self::Instructions => 1,
        }
    }

    /// The cell that this one is compared to in each repetition.
    pub const fn reference(self) -> Option<Self> {
        match self {
            Self::Decide(_, work) => Some(Self::Decide(Of::Governor, work)),
            Self::Tail(_) => Some(Self::Tail(Of::Governor)),
            #[cfg(feature = "servers")]
            Self::InFlight(_, keys) => Some(Self::InFlight(crate::in_flight::By::Semaphores, keys)),
            // These contain it.
            Self::Layer | Self::App => Some(self),
            _ => None,
        }
    }

    /// The reference times that are equal in each repetition on a machine that is left alone.
    pub fn steady(self) -> Vec<String> {
        match self {
            Self::Decide(_, work) if work.isolated() => vec!["loop".into(), "isolated".into()],
            Self::Decide(..) => vec!["loop".into()],
            #[cfg(feature = "servers")]
            Self::InFlight(..) => vec!["loop".into()],
            Self::Tail(_) => vec!["p50".into()],
            Self::Layer => [Row::Governor, Row::GovernorHeaders].map(|row| format!("{}: ns", row.name())).into(),
            Self::App => vec![format!("{}: elapsed ns", app::BARE)],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(of, key) => write!(f, "exact/{}/{}", of.name(), key.name()),
            Self::Decide(of, work) => write!(f, "{}/{work}", of.name()),
            Self::Tail(of) => write!(f, "tail/{}", of.name()),
            Self::Change(of, keys) => write!(f, "change/{}/{}", of.name(), short(*keys)),
            #[cfg(feature = "servers")]
            Self::InFlight(by, keys) => write!(f, "in-flight/{}/{}", by.name(), short(*keys)),
            Self::Lost => f.write_str("lost/ours"),
            Self::FirstTouch => f.write_str("first-touch/ours"),
            Self::Layer => f.write_str("layer"),
            Self::Instructions => f.write_str("instructions"),
            Self::App => f.write_str("app"),
        }
    }
}
