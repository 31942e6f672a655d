//! The attribute `q`: the quota under which an item was written.

use std::time::Duration;

use tower_sluice::Quota;

use super::bytes::period_nanos;
use crate::table::Item;

/// Writes a quota: its limit, its burst, and its period in nanoseconds.
pub(super) fn of(quota: &Quota) -> String {
    format!("{}/{}/{}", quota.limit(), quota.max_burst(), period_nanos(quota))
}

/// Parses the name that [`of`] writes.
pub(super) fn parse(name: &str) -> Option<Quota> {
    let mut numbers = name.split('/');
    let (limit, burst) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    let period = Duration::from_nanos(numbers.next()?.parse().ok()?);
    let quota = Quota::try_per(limit, period).ok()?.try_burst(burst).ok()?;
    numbers.next().is_none().then_some(quota)
}

/// Returns the quota under which an item was written, if it is not `own`.
pub(crate) fn another(item: &Item, own: &Quota) -> Option<Quota> {
    let name = item.get("q")?.as_s().ok()?;
    if *name == of(own) { None } else { parse(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_names_are_parsed() {
        let quotas = [Quota::per_day(7), Quota::per(Quota::MAX_UNITS, Duration::from_nanos(1)).burst(1)];
        for quota in quotas {
            let read = parse(&of(&quota)).unwrap();
            assert_eq!(
                (read.limit(), read.max_burst(), read.period()),
                (quota.limit(), quota.max_burst(), quota.period())
            );
        }
        for bad in ["", "1", "1/1", "1/1/0", "0/1/1", "1/0/1", "1/1/1/1", "-1/1/1", "a/b/c", "1000000000000000/1/1"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
