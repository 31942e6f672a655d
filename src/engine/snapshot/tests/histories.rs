//! A limiter that is restarted at any instant decides like a limiter that goes on, within one bucket tick.

use proptest::prelude::*;

use super::*;
#[cfg(feature = "calendar")]
use crate::algorithm::CalendarWindow;
use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use crate::store::WhenFull;
use crate::util::cases::cases;
use crate::util::effort::rounds;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Bucket,
    /// Its burst does not fit into words.
    GreatBucket,
    Fixed,
    Staggered,
    /// Its counts do not fit into words.
    GreatFixed,
    Sliding,
    StaggeredSliding,
    GreatSliding,
    #[cfg(feature = "calendar")]
    Calendar,
}

const SHAPES: &[Shape] = &[
    Shape::Bucket,
    Shape::Bucket,
    Shape::GreatBucket,
    Shape::Fixed,
    Shape::Staggered,
    Shape::GreatFixed,
    Shape::Sliding,
    Shape::StaggeredSliding,
    Shape::GreatSliding,
    #[cfg(feature = "calendar")]
    Shape::Calendar,
];

impl Shape {
    fn is_bucket(self) -> bool {
        matches!(self, Self::Bucket | Self::GreatBucket)
    }

    /// The quotas between which a history changes.
    fn quota(self, index: usize) -> Quota {
        let (limits, seconds) = match self {
            Self::Bucket => ([10, 25, 3], [60, 3_600, 1]),
            Self::GreatBucket => ([5_000_000_000, 9_000_000_000, 5_000_000_001], [60, 60, 61]),
            Self::Fixed | Self::Sliding => ([10, 25, 3], [60, 60, 90]),
            Self::Staggered | Self::StaggeredSliding => ([10, 25, 3], [60; 3]),
            Self::GreatFixed => ([5_000_000_000, 9_000_000_000, 5_000_000_001], [60, 60, 90]),
            Self::GreatSliding => ([70_000, 90_000, 80_000], [60, 60, 90]),
            #[cfg(feature = "calendar")]
            Self::Calendar => ([10, 25, 3], [86_400; 3]),
        };
        let quota = Quota::per(limits[index], Duration::from_secs(seconds[index]));
        if self == Self::Bucket && index == 1 { quota.burst(40) } else { quota }
    }

    /// A cost of about a quarter of the limit.
    fn cost(self, units: u64) -> u64 {
        match self {
            Self::GreatBucket | Self::GreatFixed => units * 1_234_567_891,
            Self::GreatSliding => units * 17_001,
            _ => units,
        }
    }

    fn policy(self, index: usize, when_full: WhenFull, takes_quotas: bool, clock: &ManualClock) -> Policy {
        let store = store(clock).when_full(when_full);
        let quota = self.quota(index);
        let policy = match self {
            Self::Bucket | Self::GreatBucket => policy("p", TokenBucket::new(quota), store),
            Self::Fixed | Self::GreatFixed => policy("p", FixedWindow::new(quota), store),
            Self::Staggered => policy("p", FixedWindow::new(quota).staggered(), store),
            Self::Sliding | Self::GreatSliding => policy("p", SlidingWindow::new(quota), store),
            Self::StaggeredSliding => policy("p", SlidingWindow::new(quota).staggered(), store),
            #[cfg(feature = "calendar")]
            Self::Calendar => policy("p", CalendarWindow::daily(quota.limit()), store),
        };
        if takes_quotas { policy.quota_fn(|_| None) } else { policy }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Charge { key: u64, units: u64, quota: Option<usize> },
    Advance(u64),
    Change(usize),
    Restart { down: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![0..SECOND, 0..90 * SECOND, 0..100_000 * SECOND];
    let quota = prop::option::weighted(0.3, 0..3_usize);
    let charge = (0..6_u64, 0..5_u64, quota).prop_map(|(key, units, quota)| Step::Charge { key, units, quota });
    let step = prop_oneof![
        12 => charge,
        4 => time.clone().prop_map(Step::Advance),
        1 => (0..3_usize).prop_map(Step::Change),
        2 => prop_oneof![Just(0), time].prop_map(|down| Step::Restart { down }),
    ];
    prop::collection::vec(step, 1..60)
}

struct World {
    clock: ManualClock,
    layer: RateLimitLayer,
}

impl World {
    fn new(policy: impl Fn(&ManualClock) -> Policy, clock: ManualClock) -> Self {
        Self { layer: RateLimitLayer::new(policy(&clock)), clock }
    }
}

/// By how much two buckets' waits may differ: a tick, and a nanosecond for its rounding, for each restart and each
/// change.
fn tolerance(shape: Shape, turns: u32) -> Duration {
    let longest = (0..3).map(|index| {
        let quota = shape.quota(index);
        quota.time_to_restore(quota.max_burst().max(40))
    });
    let tick = nanos(1) + longest.max().expect("there are three") / u32::MAX * 2;
    if shape.is_bucket() { (tick + nanos(1)) * (turns + 1) } else { Duration::ZERO }
}

fn run(shape: Shape, when_full: WhenFull, has_quotas: bool, starts_at: Option<u64>, steps: &[Step]) {
    let mut index = 0;
    let make = |index: usize| move |clock: &ManualClock| shape.policy(index, when_full, has_quotas, clock);
    let ever = World::new(make(0), clock_at(START));
    let mut anew = World::new(make(0), clock_at(START));
    // Both begin with one secret, which determines staggered windows.
    let _ = charge(&ever.layer, "p", 0, 0);
    restored(&anew.layer, &written(&ever.layer, START), START).expect("it is as it was written");
    let mut wall = START;
    let mut turns = 0;
    let is_near = |one: Option<Duration>, other: Option<Duration>, turns| match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) <= tolerance(shape, turns),
        // The debt is less than a tick.
        (Some(one), None) | (None, Some(one)) => one <= tolerance(shape, turns),
        (None, None) => true,
    };
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Charge { key, units, quota } => {
                let quota = quota.filter(|_| has_quotas).map(|index| shape.quota(index));
                let [one, other] = [&ever, &anew].map(|world| asks(&world.layer, "p", key, shape.cost(units), quota));
                let context = format!("step {number}: {one:?}\nand after restarts {other:?}");
                if one.is_allowed() != other.is_allowed() {
                    // This is the instant at which it is admitted, to a tick. From here on, the histories differ.
                    let wait = one.retry_after().or(other.retry_after()).expect("one of them waits");
                    assert!(wait <= tolerance(shape, turns), "{context}");
                    return;
                }
                assert!(is_near(one.retry_after(), other.retry_after(), turns), "{context}");
                assert!(is_near(Some(one.reset_after()), Some(other.reset_after()), turns), "{context}");
                let most = if shape.is_bucket() { 1 } else { 0 };
                assert!(one.remaining().abs_diff(other.remaining()) <= most, "{context}");
            }
            Step::Advance(time) => {
                [&ever, &anew].iter().for_each(|world| world.clock.advance(nanos(time)));
                wall += time;
            }
            Step::Change(to) => {
                turns += 1;
                index = to;
                let changed = [&ever, &anew].map(|world| world.layer.handle().replace(make(to)(&world.clock)).unwrap());
                assert_eq!(changed[0], changed[1]);
            }
            Step::Restart { down } => {
                turns += 1;
                let bytes = written(&anew.layer, wall);
                ever.clock.advance(nanos(down));
                wall += down;
                let now = starts_at.unwrap_or(wall);
                anew = World::new(make(index), clock_at(now));
                let result = restored(&anew.layer, &bytes, wall).expect("it is as it was written");
                assert_eq!(result.policies(), ["p"], "{result}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(rounds(400, 4_000)))]

    #[test]
    fn a_restart_equals_no_restart(
        shape in prop::sample::select(SHAPES),
        when_full in prop::sample::select(&[WhenFull::EvictLeast, WhenFull::Reject, WhenFull::Overflow][..]),
        has_quotas: bool,
        steps in steps(),
    ) {
        run(shape, when_full, has_quotas, None, &steps);
    }

    /// Each process's clock begins at zero, or anywhere, because a bucket has no edges.
    #[test]
    fn a_bucket_outlives_its_clock(
        shape in prop::sample::select(&[Shape::Bucket, Shape::GreatBucket][..]),
        has_quotas: bool,
        begins in prop_oneof![Just(0), 0..u64::MAX / 4],
        steps in steps(),
    ) {
        run(shape, WhenFull::EvictLeast, has_quotas, Some(begins), &steps);
    }
}

/// By another clock, windows begin at other instants. A count goes on for its old time at least, and less than a period
/// longer, even if the wall clock was set back.
#[test]
fn windows_by_another_clock_forgive_nothing() {
    const PERIOD: u64 = 60 * SECOND;
    for shape in [Shape::Fixed, Shape::Staggered, Shape::Sliding, Shape::StaggeredSliding] {
        for (then, now, wall) in (0..60).flat_map(|second| {
            let begins = 7 + second * 11 * SECOND;
            [(START, begins, 90), (START, START - second * 7 * SECOND, 1), (begins + PERIOD, START, 130)]
        }) {
            let make = |clock: &ManualClock| RateLimitLayer::new(shape.policy(0, WhenFull::EvictLeast, false, clock));
            let before = make(&clock_at(then));
            assert!(charge(&before, "p", 1, 10).is_allowed());
            let left = charge(&before, "p", 1, 10).retry_after().unwrap();
            let bytes = written(&before, 100 * SECOND);
            let after = make(&clock_at(now));
            restored(&after, &bytes, wall * SECOND).unwrap();
            let left = left.saturating_sub(nanos(wall.saturating_sub(100) * SECOND));
            let decision = charge(&after, "p", 1, 10);
            match decision.retry_after() {
                Some(wait) => {
                    // A sliding window that is folded into one count decays once more.
                    let periods = if matches!(shape, Shape::Sliding | Shape::StaggeredSliding) { 2 } else { 1 };
                    assert!(wait >= left && wait < left + nanos(periods * PERIOD), "{shape:?}: {wait:?} for {left:?}");
                }
                None => assert!(decision.is_allowed() && left.is_zero(), "{shape:?}: {left:?} is forgiven"),
            }
        }
    }
}

/// If the wall clock was set back by an hour or a year, a debt keeps the rest that it had when it was written, and a
/// ban does not get longer.
#[test]
fn a_wall_clock_set_back_is_safe() {
    for shape in [Shape::Bucket, Shape::GreatBucket] {
        let make = |clock: &ManualClock| RateLimitLayer::new(shape.policy(0, WhenFull::EvictLeast, false, clock));
        let before = make(&clock_at(START));
        let most = shape.quota(0).limit();
        assert!(charge(&before, "p", 1, most).is_allowed());
        let wait = charge(&before, "p", 1, most).retry_after().unwrap();
        let bytes = written(&before, START);
        for back in [1, 3_600 * SECOND, 366 * 86_400 * SECOND] {
            let after = make(&clock_at(START - back));
            restored(&after, &bytes, START - back).unwrap();
            let other = charge(&after, "p", 1, most).retry_after().unwrap();
            assert!(other.abs_diff(wait) <= tolerance(shape, 1), "{other:?} in place of {wait:?}");
        }
    }
}

/// The default clock stands still while the machine is suspended. The next process shows the right time, by which the
/// count's day is over.
#[test]
fn counts_end_despite_a_corrected_clock() {
    const DAY: u64 = 86_400 * SECOND;
    let edge = (START / DAY + 1) * DAY;
    let day = Quota::per_day(10);
    let make = |clock: &ManualClock| {
        [policy("fixed", FixedWindow::new(day), store(clock)), policy("sliding", SlidingWindow::new(day), store(clock))]
    };
    // The wall clock is an hour ahead of the process's clock.
    let (clock, wall) = (edge - 3_000 * SECOND, edge + 600 * SECOND);
    let before = RateLimitLayer::new(make(&clock_at(clock)));
    assert!(charge(&before, "fixed", 1, 10).is_allowed() && charge(&before, "sliding", 1, 10).is_allowed());
    let bytes = written(&before, wall);
    let after = RateLimitLayer::new(make(&clock_at(wall + SECOND)));
    restored(&after, &bytes, wall + SECOND).unwrap();
    assert_eq!(charge(&after, "fixed", 1, 0).remaining(), 10);
    // It counts like the day before.
    assert_eq!(charge(&after, "sliding", 1, 0).remaining(), 0);
    assert_eq!(charge(&after, "sliding", 1, 1).retry_after().map(|wait| wait < nanos(DAY / 10)), Some(true));
}

/// The table is full, in all words and both candidate sets.
#[test]
fn full_tables_are_restored_whole() {
    for (shape, keys) in [(Shape::Bucket, 256), (Shape::GreatFixed, 256), (Shape::Sliding, 256)] {
        let clock = clock_at(START);
        let make = || RateLimitLayer::new(shape.policy(0, WhenFull::EvictLeast, false, &clock));
        let before = make();
        let most = shape.quota(0).limit();
        assert!((0..keys).all(|key| charge(&before, "p", key, most).is_allowed()));
        let mut layer = before;
        // Each restart is from a table that has inherited, and was not asked since.
        for _ in 0..3 {
            let bytes = written(&layer, START);
            layer = make();
            assert_eq!(restored(&layer, &bytes, START).unwrap().keys(), keys);
        }
        assert!((0..keys).all(|key| !charge(&layer, "p", key, most).is_allowed()));
    }
}

/// The capacity changes live, and again with the restart.
#[test]
fn another_capacity_keeps_all_keys() {
    let clock = clock_at(START);
    let make = |capacity| {
        let store = MemoryStore::with_capacity(capacity).with_clock(clock.clone());
        policy("p", TokenBucket::new(Quota::per_hour(1)), store)
    };
    for asks in [true, false] {
        let mut layer = RateLimitLayer::new(make(100));
        let mut keys = 0;
        for capacity in [1_000, 300, 5_000, 77] {
            assert!((keys..keys + 10).all(|key| charge(&layer, "p", key, 1).is_allowed()));
            keys += 10;
            let bytes = written(&layer, START);
            layer = RateLimitLayer::new(make(capacity));
            let result = restored(&layer, &bytes, START).unwrap();
            if !asks && capacity == 77 {
                // A key that is not asked about stays in a copy of the table that it was charged in.
                let reason = "its budgets: its capacity was changed too often while debts were unpaid";
                assert_eq!(result.not_restored()[0].1, reason);
                break;
            }
            assert_eq!(result.policies(), ["p"]);
            assert!(!asks || (0..keys).all(|key| !charge(&layer, "p", key, 1).is_allowed()), "{capacity}");
        }
    }
}

/// Threads move keys from an earlier restart's copies into the table while it is written, and change its form.
#[test]
fn snapshots_do_not_miss_moving_keys() {
    const KEYS: u64 = 500;
    for takes_quotas in [false, true] {
        for round in 0..rounds(10, 100) {
            let clock = clock_at(START);
            let make = || {
                let store = MemoryStore::with_capacity(1_000).with_clock(clock.clone());
                let made = policy("p", TokenBucket::new(Quota::per_hour(1)), store);
                RateLimitLayer::new(if takes_quotas { made.quota_fn(|_| None) } else { made })
            };
            let before = make();
            assert!((0..KEYS).all(|key| charge(&before, "p", key, 1).is_allowed()));
            let copied = make();
            restored(&copied, &written(&before, START), START).unwrap();
            let bytes = std::thread::scope(|scope| {
                for thread in 0..2 {
                    let copied = &copied;
                    scope.spawn(move || {
                        let mut keys = (0..KEYS).map(|key| (key * 7 + thread + round as u64) % KEYS);
                        assert!(keys.all(|key| !charge(copied, "p", key, 1).is_allowed()));
                    });
                }
                written(&copied, START)
            });
            let after = make();
            restored(&after, &bytes, START).unwrap();
            let forgiven = (0..KEYS).filter(|key| charge(&after, "p", *key, 1).is_allowed()).count();
            assert_eq!(forgiven, 0, "with quotas of the keys' own: {takes_quotas}");
        }
    }
}

/// The table is full, with keys that share overflow slots. As after a live change, a key with its own slot also owes
/// its group's shared units, because it may have spent them before.
#[test]
fn shared_budgets_are_restored() {
    for shape in [Shape::Bucket, Shape::GreatFixed, Shape::Sliding, Shape::GreatSliding] {
        for has_quotas in [false, true] {
            let clock = clock_at(START);
            let make = || {
                let full = MemoryStore::with_capacity(1).with_clock(clock.clone()).when_full(WhenFull::Overflow);
                let made = match shape {
                    Shape::Bucket => policy("p", TokenBucket::new(shape.quota(0)), full),
                    Shape::GreatFixed => policy("p", FixedWindow::new(shape.quota(0)), full),
                    _ => policy("p", SlidingWindow::new(shape.quota(0)), full),
                };
                RateLimitLayer::new(if has_quotas { made.quota_fn(|_| None) } else { made })
            };
            let before = make();
            for key in 0..2_000 {
                let _ = charge(&before, "p", key, shape.cost(1 + key % 3));
            }
            let after = make();
            restored(&after, &written(&before, START), START).unwrap();
            let left = |key| [&before, &after].map(|layer| charge(layer, "p", key, 0).remaining());
            let all: Vec<_> = (0..2_000).map(left).collect();
            assert!(all.iter().all(|left| left[0] >= left[1]), "{shape:?}: something is forgiven");
            // At most the sixteen keys with slots owe more.
            assert!(all.iter().filter(|left| left[0] != left[1]).count() <= 16, "{shape:?}");
        }
    }
}
