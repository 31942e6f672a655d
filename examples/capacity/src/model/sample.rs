//! Which part of a load is simulated: all requests for the keys in a few table sets.
//!
//! A process's tables have 2,048 sets, and a key has an equal set in all processes. The sets do not influence each
//! other, so a few are representative for all ("set sampling", as for hardware caches). The rates are the real ones, in
//! all processes: only keys are left out.
//!
//! Hot keys are few, and might all be in other sets. So up to eight keys from each band get their own set in the
//! sample, which they share with keys as cold as any. The counts are scaled to each band's rate.

use tower_sluice::testing::Random;

use super::draw::Draw;
use super::process::SETS;
use super::server::Key;
use super::traffic::{Band, Traffic};

/// How many sets are drawn.
const DRAWN: u32 = 16;

/// How many keys from a band are in the sample at least, if the band has them.
const PER_BAND: u64 = 8;

/// A band with a smaller share than one in this many requests is ignored.
const NEGLIGIBLE: f64 = 2_000.0;

/// One band's keys in one set.
#[derive(Clone, Copy)]
struct Group {
    set: u32,
    band: usize,
    keys: Keys,
    /// Whether it is counted: not the cold keys in a set with a hot one.
    is_counted: bool,
}

#[derive(Clone, Copy)]
enum Keys {
    One {
        rank: u64,
    },
    /// This many, only whose number is drawn in advance.
    Some {
        count: u64,
    },
}

/// Requests that come by chance.
pub(crate) struct Sample {
    groups: Vec<Group>,
    /// The sums of the candidates' rates, group by group.
    sums: Vec<f64>,
    pub(crate) bands: Vec<Band>,
    pub(crate) sets: u32,
    traffic: Traffic,
    random: Random,
    now: f64,
}

/// A request in the sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// In nanoseconds.
    pub(crate) at: u64,
    pub(crate) set: u32,
    pub(crate) band: usize,
    pub(crate) rank: u64,
    pub(crate) is_counted: bool,
}

impl Request {
    pub(crate) const fn key(&self) -> Key {
        ((self.set as u64) << 48) | self.rank
    }
}

impl Sample {
    pub(crate) fn new(traffic: Traffic, seed: u64) -> Self {
        let mut sample = Self {
            groups: Vec::new(),
            sums: Vec::new(),
            bands: traffic.bands(),
            sets: DRAWN,
            traffic,
            random: Random::new(seed),
            now: 0.0,
        };
        let all: f64 = sample.bands.iter().map(|band| band.rate).sum();
        let hosted = (0..sample.bands.len()).filter(|band| {
            let Band { width, rate, .. } = sample.bands[*band];
            width < PER_BAND * SETS / u64::from(DRAWN) && rate > all / NEGLIGIBLE
        });
        for band in hosted.collect::<Vec<_>>() {
            let Band { first, width, .. } = sample.bands[band];
            for number in 0..width.min(PER_BAND) {
                // Spread over the band.
                let keys = Keys::One { rank: first + number * width / width.min(PER_BAND) };
                sample.groups.push(Group { set: sample.sets, band, keys, is_counted: true });
                sample.sets += 1;
            }
        }
        for set in 0..sample.sets {
            for band in 0..sample.bands.len() {
                let count = sample.random.poisson(sample.bands[band].width as f64 / SETS as f64);
                if count > 0 {
                    let is_counted = set < DRAWN;
                    sample.groups.push(Group { set, band, keys: Keys::Some { count }, is_counted });
                }
            }
        }
        let mut sum = 0.0;
        for group in &sample.groups {
            sum += match group.keys {
                Keys::One { rank } => traffic.rate_of(rank),
                Keys::Some { count } => count as f64 * traffic.rate_of(sample.bands[group.band].first),
            };
            sample.sums.push(sum);
        }
        sample
    }

    /// How many candidates there are per second.
    pub(crate) fn rate(&self) -> f64 {
        self.sums.last().copied().unwrap_or_default()
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Request {
        loop {
            // Poisson: the time until the next is exponentially distributed.
            self.now -= self.random.unit().ln() / self.rate() * 1e9;
            let chosen = self.random.unit() * self.rate();
            let index = self.sums.partition_point(|sum| *sum < chosen).min(self.groups.len() - 1);
            let Group { set, band, keys, is_counted } = self.groups[index];
            let rank = match keys {
                Keys::One { rank } => rank,
                Keys::Some { count } => {
                    let Band { first, width, .. } = self.bands[band];
                    let number = self.random.below(count);
                    // Each number always stands for one key.
                    let rank = first + Random::new((u64::from(set) << 40) ^ (first << 20) ^ number).next() % width;
                    if self.random.unit() > self.traffic.thinning(&self.bands[band], rank) {
                        continue;
                    }
                    rank
                }
            };
            return Request { at: self.now as u64, set, band, rank, is_counted };
        }
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        u32::try_from(self.random.below(end.into())).expect("below a u32")
    }
}
