//! A partner's remaining quota: three drafts of one standard, and the fields that came before it.

use std::cmp::Reverse;
use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue};
use tower_sluice::headers::{RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET};

use super::super::pace::Budget;
use super::super::structured::{self, Bare, ListMember};
use super::values::{line, seconds_until, whole};
use super::{MAX_BYTES, MAX_RESET, SECOND};

/// More units left than this are counted as this many.
pub(super) const MAX_LEFT: u64 = 1_000_000_000;

/// Three fields that together report one quota, or a list of quotas.
struct Family {
    limit: HeaderName,
    left: HeaderName,
    reset: HeaderName,
    /// The time until the reset, which does not depend on the clocks of the two sides.
    reset_after: Option<HeaderName>,
}

impl Family {
    const fn new(limit: &'static str, left: &'static str, reset: &'static str) -> Self {
        Self {
            limit: HeaderName::from_static(limit),
            left: HeaderName::from_static(left),
            reset: HeaderName::from_static(reset),
            reset_after: None,
        }
    }
}

/// The families of numeric fields. Those that count tokens or bytes are left out, because the client does not know how
/// many its next call takes.
static FAMILIES: [Family; 6] = [
    Family {
        limit: X_RATELIMIT_LIMIT,
        left: X_RATELIMIT_REMAINING,
        reset: X_RATELIMIT_RESET,
        reset_after: Some(HeaderName::from_static("x-ratelimit-reset-after")),
    },
    Family::new("x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"),
    // Drafts 00 to 06 of the standard.
    Family::new("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
    Family::new("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    Family::new("x-ratelimit-requests-limit", "x-ratelimit-requests-remaining", "x-ratelimit-requests-reset"),
    Family::new(
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
];

impl Family {
    /// Reads the quotas. A field may list one number per quota.
    fn budgets(&self, headers: &HeaderMap, policies: &[ListMember<'_>], now: SystemTime) -> Vec<Budget> {
        let lefts: Option<Vec<_>> = line(headers, &self.left).and_then(|line| items(line).map(whole).collect());
        let Some(lefts) = lefts else { return Vec::new() };
        let resets = self.resets(headers, now, lefts.len());
        let limits = line(headers, &self.limit).unwrap_or_default();
        let limits = structured::list(limits).unwrap_or_default();
        let pairs = lefts.into_iter().zip(resets).enumerate();
        pairs.map(|(index, (left, reset))| family_budget(left, reset, index, &limits, policies)).collect()
    }

    /// Returns the times until the resets, or an empty list unless there are `count`.
    fn resets(&self, headers: &HeaderMap, now: SystemTime, count: usize) -> Vec<u64> {
        let names = self.reset_after.iter().chain([&self.reset]);
        let resets = names.filter_map(|name| line(headers, name)).find_map(|line| match count {
            // A date has a comma.
            1 => Some(vec![seconds_until(line, now)?]),
            _ => items(line).map(|item| seconds_until(item, now)).collect(),
        });
        resets.filter(|resets| resets.len() == count).unwrap_or_default()
    }
}

fn items(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn family_budget(
    left: u64,
    reset: u64,
    index: usize,
    limits: &[ListMember<'_>],
    policies: &[ListMember<'_>],
) -> Budget {
    // Drafts 00 to 06 list the windows behind the limit: `100, 100;w=60`.
    let has_windows = limits.iter().any(|limit| !limit.parameters.is_empty());
    let limit = limits.get(if has_windows { 0 } else { index }).and_then(|limit| limit.value.count().ok());
    let same = limits.iter().chain(policies).filter(|member| limit.is_some() && member.value.count().ok() == limit);
    let window = same.filter_map(|member| member.count("w").ok()?).next();
    budget(left, reset, limit, spacing(limit.unwrap_or(0), window.unwrap_or(0)))
}

/// Returns the time until a reset that comes without units left, in microseconds. In a rejection, it is a wait.
pub(super) fn lone_reset(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let lone = FAMILIES.iter().filter(|family| !headers.contains_key(&family.left));
    let resets = lone.flat_map(|family| family.resets(headers, now, 1));
    resets.max().map(|seconds| seconds.clamp(1, MAX_RESET) * SECOND)
}

/// Returns the budget that allows the least: the longest time without any call, otherwise the lowest rate.
pub(super) fn tightest(budgets: impl IntoIterator<Item = Budget>) -> Option<Budget> {
    let spread = |budget: &Budget| Reverse(budget.reset / (budget.left + 1));
    budgets.into_iter().min_by_key(|budget| (budget.left > 0, spread(budget)))
}

/// Returns the budgets for all policies that count requests and report how long the remaining units have to last.
pub(super) fn quotas(headers: &HeaderMap, now: SystemTime) -> Vec<Budget> {
    let field = lines(headers, &RATELIMIT).unwrap_or_default();
    let policies = lines(headers, &RATELIMIT_POLICY).unwrap_or_default();
    let policies = structured::list(&policies).unwrap_or_default();
    let mut budgets = if field.trim_ascii().starts_with(b"\"") {
        draft11(&field, &policies).unwrap_or_default()
    } else {
        draft07(&field, &policies).into_iter().collect()
    };
    budgets.extend(FAMILIES.iter().flat_map(|family| family.budgets(headers, &policies, now)));
    budgets
}

/// Joins all lines of a field (RFC 9110, section 5.3). Fails if they are too long.
fn lines(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines = || headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let length: usize = lines().map(|line| line.len() + 1).sum();
    (length <= MAX_BYTES).then(|| lines().collect::<Vec<_>>().join(&b','))
}

/// Makes a budget, with numbers in bounds. A window of zero seconds counts as a window that ends within a second.
fn budget(left: u64, reset: u64, limit: Option<u64>, spacing: u64) -> Budget {
    let left = left.min(limit.unwrap_or(MAX_LEFT)).min(MAX_LEFT);
    Budget { left, reset: reset.clamp(1, MAX_RESET) * SECOND, spacing }
}

/// Returns the mean time between calls under a quota of `limit` in `window` seconds, rounded up; 0 if it is absent.
fn spacing(limit: u64, window: u64) -> u64 {
    match (limit, window) {
        (1.., 1..=MAX_RESET) => (window * SECOND).div_ceil(limit),
        _ => 0,
    }
}

/// Reads `"name";r=..;t=..`, with `"name";q=..;w=..` from the other field. Fails if a member does not follow the draft.
pub(super) fn draft11(field: &[u8], policies: &[ListMember<'_>]) -> Option<Vec<Budget>> {
    let mut budgets = Vec::new();
    for state in structured::list(field)? {
        let Bare::String(_) = &state.value else { return None };
        let left = state.count("r").ok()??;
        let reset = state.count("t").ok()?;
        let policy = policies.iter().find(|policy| policy.value == state.value);
        // A client cannot say how many bytes or requests in flight its calls will take.
        let is_of_requests = match policy.and_then(|policy| policy.parameter("qu")) {
            None => true,
            Some(Bare::String(unit)) => matches!(unit.as_slice(), b"requests" | b"request"),
            Some(_) => false,
        };
        // Without a time, it is unknown when to send.
        if let (Some(reset), true) = (reset, is_of_requests) {
            let of_policy = |key| policy.and_then(|policy| policy.count(key).ok()?);
            let (limit, window) = (of_policy("q"), of_policy("w"));
            budgets.push(budget(left, reset, limit, spacing(limit.unwrap_or(0), window.unwrap_or(0))));
        }
    }
    Some(budgets)
}

/// Reads `limit=.., remaining=.., reset=..`, with `limit;w=..` from the other field.
fn draft07(field: &[u8], policies: &[ListMember<'_>]) -> Option<Budget> {
    let members = structured::dictionary(field)?;
    // If a key comes twice, the last one counts (RFC 9651, section 4.2.2).
    let count = |key: &str| members.iter().rev().find(|member| member.key == key.as_bytes())?.value.count().ok();
    let limit = count("limit")?;
    let left = count("remaining")?;
    let reset = count("reset")?;
    let policy = policies.iter().find(|policy| policy.value.count() == Ok(limit));
    let window = policy.and_then(|policy| policy.count("w").ok()?).unwrap_or(0);
    Some(budget(left, reset, Some(limit), spacing(limit, window)))
}
