//! For any stored state, a script stores the state that Rust computes: states like those in traces, and states at every
//! edge.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::time::Duration;

use ::redis::Value;
use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::bucket_receipt;
use tower_sluice::internal::remote::testing::{ReadCalendar as _, ReadQuota as _, window_receipt};
use tower_sluice::limiter::Receipt;

use super::model::Model;
use super::traces::{bucket_quota, cost, lives_as_long, window_quota};
use super::{ALL, estimate, refund};
use crate::script::bucket::marked;
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::{Grid, MOST_UNITS, MicrosSpan, ScriptReply, Scripted, decide};
use crate::support::trace::Trace;

const BATCHES: u64 = 60;
/// The number of keys with one quota, sent together.
const BATCH: u64 = 200;
/// The index of the outcome "a state from the future was corrected".
const CORRECTED: usize = 2;

/// Later than any state.
const LAST: u64 = (1 << 53) - 1;

/// Draws a time, a key's text, and a receipt.
type Draw<A> = fn(&mut Xorshift, &A) -> (u64, String, Receipt);

/// Draws a bucket whose debt is near zero or near a full bucket.
fn bucket(random: &mut Xorshift, bucket: &TokenBucket) -> (u64, String, Receipt) {
    let quota = bucket.quota();
    let now = START + random.below(1 << 50);
    let grid = Grid::new(&quota);
    let [price, full] = [1, bucket.max_cost()].map(|cost| grid.span(grid.price(cost)));
    // Keys expire at whole milliseconds.
    let now = if random.below(8) == 0 { (now + full.micros).next_multiple_of(1_000) - full.micros } else { now };
    let rests = [0, 1, price.rest, full.rest, full.rest + 1, grid.parts() - 1, grid.parts(), grid.parts() + 7];
    let mut time = |far: bool| {
        let edges = [now, now + price.micros, now + full.micros, now + full.micros - price.micros];
        let micros = random.pick(&edges) + random.below(4) - 2;
        let micros = if far && random.below(4) == 0 { micros / 1_000 * 1_000 } else { micros };
        (micros, random.pick(&rests))
    };
    let (due, rest) = time(true);
    let (paid, paid_rest) = time(false);
    let paid = u128::from(paid) * 1_000 * u128::from(quota.limit());
    let grain = grid.units(MicrosSpan { micros: 0, rest: 1 });
    let receipt = bucket_receipt(paid + u128::from(paid_rest.min(grid.parts() - 1)) * grain);
    let text = if rest == 0 { format!("-{due}") } else { format!("-{due}+{rest}") };
    (now, text, receipt)
}

/// Draws a time, a window's number near the number at that time, and counts near the limit.
fn window(random: &mut Xorshift, quota: &Quota) -> (u64, u64, [u64; 2]) {
    let period = quota.period_nanos() / 1_000;
    let limit = quota.limit();
    let now = START + random.below(1 << 50);
    let now = if random.below(4) == 0 { (now / period).max(1) * period + random.below(2) } else { now };
    let counts = [0, 1, 2, limit / 2, limit - 1, limit, (limit + 1).min(MOST_UNITS), MOST_UNITS];
    (now, (now / period).max(3) + random.below(5) - 2, [(); 2].map(|()| random.pick(&counts)))
}

fn fixed(random: &mut Xorshift, limit: &FixedWindow) -> (u64, String, Receipt) {
    let (now, number, [used, _]) = window(random, &limit.quota());
    (now, format!("-{number}:{used}"), window_receipt(number + random.below(3) - 1))
}

fn sliding(random: &mut Xorshift, limit: &SlidingWindow) -> (u64, String, Receipt) {
    let (now, number, [previous, current]) = window(random, &limit.quota());
    // A state without used units is never written.
    let current = if previous == 0 { current.max(1) } else { current };
    (now, format!("-{number}:{previous}:{current}"), window_receipt(number + random.below(3) - 1))
}

fn calendar(random: &mut Xorshift, limit: &CalendarWindow) -> (u64, String, Receipt) {
    let now = START + random.below(1 << 50);
    let ends = |now: u64| limit.end_of_window(at(now)).as_nanos() / 1_000;
    // Sometimes at the end of a window, or next to it.
    let now = if random.below(3) == 0 { ends(now) + random.below(3) - 1 } else { now };
    // Mostly in the present window, because charges to others are not refunded.
    let seconds = [now, ends(now), ends(now), ends(now), ends(ends(now)), ends(now) - 86_400_000_000];
    let seconds = seconds.map(|micros| micros / 1_000_000);
    let [end, charged] = [(); 2].map(|()| random.pick(&seconds));
    let most = limit.quota().limit();
    let used = random.pick(&[0, 1, most, (most + 1).min(MOST_UNITS)]);
    (now, format!("-{end}:{used}"), window_receipt(charged * 1_000_000_000))
}

fn check<A: Scripted + Model + Debug>(
    make: impl Fn(Quota) -> A,
    quota: impl Fn(&mut Xorshift) -> Quota,
    draw: Draw<A>,
) {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut batch = 0;
    let mut seen = [0_u64; 5];
    let mut trace = Trace::of(usize::try_from(BATCHES).unwrap());
    while trace.goes_on([
        ("batches", batch >= BATCHES),
        ("states that are written", seen[0] > 100),
        ("states that are deleted", seen[1] > 100),
        ("states that are corrected", seen[CORRECTED] > 100),
        ("states that a decision leaves", seen[3] > 100),
        ("states that a refund leaves", seen[4] > 100),
    ]) {
        let algorithm = make(quota(&mut random));
        if algorithm.fits().is_err() {
            continue;
        }
        let mut asked = Vec::new();
        for number in 0..BATCH {
            let (now, text, receipt) = draw(&mut random, &algorithm);
            let name = key(format!("{batch} {number}"));
            let cost = cost(&mut random, algorithm.max_cost());
            let refunded = refund(&algorithm, &algorithm, name.clone(), cost, receipt, at(now));
            let refunded = refunded.filter(|_| random.below(3) == 0).map(|call| (call, receipt));
            let count = 1 + random.below(3) as u32;
            server.add_set(&name, &text);
            match &refunded {
                Some((call, _)) => server.add(now, call),
                None => server.add(now, &decide(&algorithm, name.clone(), cost, count, at(now))),
            }
            server.add_get(&name);
            server.add_expiry(&name);
            asked.push((now, text, cost, count, refunded.map(|(_, receipt)| receipt)));
        }
        for (replies, (now, text, cost, count, receipt)) in server.replies().chunks(3).zip(asked) {
            let answer = ScriptReply::read(replies[0].clone(), 1).unwrap();
            let context = || format!("{algorithm:?}, cost {cost}, {receipt:?} for {text} at {now}: {replies:?}");
            let kept = algorithm.read(text.as_bytes(), at(LAST)).unwrap();
            let clamped = algorithm.clamped(kept, at(now));
            let is_future = clamped != kept;
            let is_charge = (1..=algorithm.max_cost()).contains(&cost);
            // The written state, or `None` within if the key owes nothing any more.
            let written = match receipt {
                None => {
                    let (_, after) = answer.replay(&algorithm, cost, count).unwrap_or_else(|_| panic!("{}", context()));
                    (answer.admitted > 0).then_some(after)
                }
                Some(_) if is_future && !A::REFUND_CORRECTS => {
                    assert_eq!(answer.admitted, 0, "{}", context());
                    None
                }
                Some(receipt) => {
                    let [before, after] = [0, cost].map(|cost| algorithm.refund(clamped, at(now), cost, receipt));
                    let is_owed = before != after && !algorithm.is_over(&before, at(now));
                    assert_eq!(answer.admitted, u32::from(is_owed), "{}", context());
                    is_owed.then_some(Some(after).filter(|after| !algorithm.is_nothing(after, at(now))))
                }
            };
            let is_corrected = if receipt.is_some() { A::REFUND_CORRECTS } else { is_charge };
            let corrected = (is_future && is_corrected).then_some(Some(clamped));
            let (expected, kind) = match (written, corrected) {
                (Some(written), _) => (Some(written), if written.is_some() { 0 } else { 1 }),
                (None, Some(corrected)) => (Some(corrected), CORRECTED),
                (None, None) => (None, 3 + usize::from(receipt.is_some())),
            };
            seen[kind] += 1;
            let found = &replies[1];
            let Value::Int(expiry) = &replies[2] else { panic!("{}", context()) };
            let Some(state) = expected else {
                assert_eq!((found, *expiry), (&Value::BulkString(text.clone().into()), -1), "{}", context());
                continue;
            };
            let text = match found {
                Value::BulkString(text) => Some(std::str::from_utf8(text).unwrap()),
                _ => None,
            };
            if kind == CORRECTED {
                let found = text.and_then(|text| algorithm.read(text.as_bytes(), at(LAST)));
                assert_eq!(found, state, "{}", context());
            } else {
                let written = state.map(|state| algorithm.write(&state, at(now)));
                let marked = written.map(|text| algorithm.mark().map_or(text.clone(), |mark| marked(&text, mark)));
                assert_eq!(text, marked.as_deref(), "{}", context());
            }
            assert!(lives_as_long(&algorithm, state.as_ref(), *expiry), "{state:?} {}", context());
        }
        batch += 1;
    }
    println!("{seen:?} written, deleted, corrected, left by decisions and by refunds");
}

#[test]
pub(super) fn stored_buckets_agree_with_rust() {
    check(TokenBucket::new, bucket_quota, bucket);
}

#[test]
pub(super) fn stored_fixed_windows_agree_with_rust() {
    check(FixedWindow::new, window_quota, fixed);
}

#[test]
pub(super) fn stored_sliding_windows_agree_with_rust() {
    check(SlidingWindow::new, window_quota, sliding);
}

/// Returns x so that `number` times x is 1 more than a multiple of `modulus`, or `None` if the two have a common
/// divisor.
fn inverse(number: u64, modulus: u64) -> Option<u64> {
    let modulus = i128::from(modulus);
    let mut a = (i128::from(number), 1);
    let mut b = (modulus, 0);
    while b.0 > 0 {
        let times = a.0 / b.0;
        (a, b) = (b, (a.0 - times * b.0, a.1 - times * b.1));
    }
    (a.0 == 1).then(|| u64::try_from(a.1.rem_euclid(modulus)).unwrap())
}

/// The previous window's weight is a whole number, differs from one by the smallest possible fraction, or is anywhere
/// between two. A double would round it up or down, and possibly beyond the whole number.
#[test]
pub(super) fn weights_near_whole_numbers_round_up() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut seen = 0;
    let mut estimates = (0, 0);
    // A double that is too small is rare.
    let mut trace = Trace::of(600);
    while trace.goes_on([
        ("weights", seen > 200),
        ("doubles that are too small", estimates.0 >= 2),
        ("doubles that are too great", estimates.1 >= 2),
    ]) {
        let number = trace.step();
        let period = random.pick(&[1 << 49, 1 << 46, 1 << 41]);
        let period = period + random.below(period / 2);
        let previous = random.pick(&[1 << 31, 1 << 49]);
        let previous = (previous + random.below(previous)).min(MOST_UNITS - 1);
        let Some(inverse) = inverse(previous, period) else { continue };
        // `left` is chosen so that the remainder of `previous * left / period` is `over`.
        let over = random.below(period);
        let over = random.pick(&[0, 1, 2, period - 1, over]);
        let left = (u128::from(inverse) * u128::from(over) % u128::from(period)).max(1) as u64;
        let algorithm = SlidingWindow::new(Quota::per(MOST_UNITS, Duration::from_micros(period)));
        let window = START / period + 1;
        let now = (window + 1) * period - left;
        if now >= 1 << 52 {
            continue;
        }
        let product = u128::from(previous) * u128::from(left);
        let weight = product.div_ceil(period.into()) as u64;
        let exact = u64::try_from(product / u128::from(period)).unwrap();
        if product >= 1 << 52 {
            match estimate(previous, left, period).cmp(&exact) {
                Ordering::Less => estimates.0 += 1,
                Ordering::Equal => {}
                Ordering::Greater => estimates.1 += 1,
            }
        }
        for (cost, admitted) in [(MOST_UNITS - weight, 1), (MOST_UNITS - weight + 1, 0)] {
            let name = key(format!("{number} {cost}"));
            server.set(&name, &format!("-{}:0:{previous}", window - 1));
            let answer = server.run(now, &decide(&algorithm, name, cost, 1, at(now)));
            assert_eq!(answer.admitted, admitted, "{previous} * {left} / {period}");
        }
        seen += 1;
    }
    println!("{seen} weights, and doubles that are too small or too great: {estimates:?}");
}

#[test]
pub(super) fn stored_calendar_windows_agree_with_rust() {
    let daily = |quota: Quota| CalendarWindow::daily(quota.limit()).zone("Europe/Berlin").unwrap();
    check(daily, |random| Quota::per(window_quota(random).limit(), Duration::from_secs(86_400)), calendar);
}
