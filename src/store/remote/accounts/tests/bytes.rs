//! An account's bytes.

use std::time::{Duration, UNIX_EPOCH};

use super::super::record::{AccountRecord, MOST_OPEN};
use super::super::{AccountDone, AccountStep, CreditExpiry, Shortfall};
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::values::REFERENCE_KEPT;
use crate::values::time::Timestamp;

const NOW: Timestamp = Timestamp::from_nanos(1_700_000_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3_600);

fn empty() -> AccountRecord {
    AccountRecord::read(None, NOW).unwrap()
}

fn credit(record: &mut AccountRecord, units: u64, expiry: CreditExpiry, reference: Option<&str>) {
    let reference = reference.map(|reference| LimiterKeys::new(b"", "bought").credited(reference));
    let (reply, is_changed) = record.apply(AccountStep::Credit { units, expiry, reference }, NOW);
    assert!(is_changed && reply.done == AccountDone::Step);
}

#[test]
fn bytes_are_as_documented() {
    let mut record = empty();
    let at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_001);
    credit(&mut record, 5, CreditExpiry::At(at), Some("invoice-17"));
    credit(&mut record, 7, CreditExpiry::Never, None);
    let (bytes, lifetime) = record.next(NOW);
    assert_eq!(lifetime, Duration::MAX);
    assert_eq!(bytes.len(), 20 + 2 * 16 + 24);
    assert_eq!(bytes[0], 1);
    assert_eq!(bytes[1..9], (NOW.as_nanos() / 1_000 + 1).to_be_bytes());
    assert_eq!(bytes[9..17], [0; 8], "it owes nothing");
    assert_eq!(bytes[17..19], [0, 2]);
    assert_eq!(bytes[19..27], 1_700_000_000_001_u64.to_be_bytes());
    assert_eq!(bytes[27..35], 5_u64.to_be_bytes());
    assert_eq!(bytes[35..43], ((1_u64 << 43) - 1).to_be_bytes());
    assert_eq!(bytes[43..51], 7_u64.to_be_bytes());
    assert_eq!(bytes[51], 1);
    assert_eq!(bytes[68..], NOW.saturating_add(REFERENCE_KEPT).as_nanos().to_be_bytes());
    assert_eq!(AccountRecord::read(Some(&bytes), NOW), Some(record));
}

#[test]
fn other_bytes_are_no_account() {
    let mut record = empty();
    credit(&mut record, 5, CreditExpiry::In(HOUR), Some("a"));
    credit(&mut record, 5, CreditExpiry::In(HOUR * 2), None);
    let (bytes, _) = record.next(NOW);
    for length in 0..bytes.len() {
        assert_eq!(AccountRecord::read(Some(&bytes[..length]), NOW), None, "{length} bytes");
    }
    for (at, byte) in [(0, 2), (16, 1), (18, 1), (18, 3), (19, 255), (51, 2)] {
        let mut other = bytes.clone();
        other[at] = byte;
        assert_eq!(AccountRecord::read(Some(&other), NOW), None, "byte {at} is {byte}");
    }
    let swapped = [&bytes[..19], &bytes[35..51], &bytes[19..35], &bytes[51..]].concat();
    assert_eq!(AccountRecord::read(Some(&swapped), NOW), None, "lots out of order");
    assert_eq!(AccountRecord::read(Some(&[&bytes[..], &[0]].concat()), NOW), None, "a byte too many");
}

/// Otherwise a swap that has read the account before would not notice.
#[test]
fn no_value_comes_back() {
    let mut record = empty();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..10 {
        credit(&mut record, 1, CreditExpiry::Never, None);
        assert!(seen.insert(record.next(NOW).0));
        let step = AccountStep::Take { units: 1, shortfall: Shortfall::Rejected, reference: None };
        assert!(record.apply(step, NOW).1);
        let (bytes, lifetime) = record.next(NOW);
        assert!(seen.insert(bytes.clone()) && lifetime == HOUR, "an empty account is kept for an hour");
        record = AccountRecord::read(Some(&bytes), NOW).unwrap();
    }
    let later = NOW.saturating_add(Duration::from_millis(1));
    let mut anew = AccountRecord::read(None, later).unwrap();
    assert!(anew.apply(AccountStep::Credit { units: 1, expiry: CreditExpiry::Never, reference: None }, later).1);
    assert!(seen.insert(anew.next(later).0), "after it was forgotten, it begins with the time");
}

#[test]
fn an_account_is_kept_while_it_matters() {
    let lifetime = |expiry, reference| {
        let mut record = empty();
        credit(&mut record, 1, expiry, reference);
        record.next(NOW).1
    };
    assert_eq!(lifetime(CreditExpiry::In(HOUR), None), HOUR * 2);
    assert_eq!(lifetime(CreditExpiry::In(HOUR), Some("a")), REFERENCE_KEPT + HOUR);
    assert_eq!(lifetime(CreditExpiry::In(REFERENCE_KEPT * 9), Some("a")), REFERENCE_KEPT * 9 + HOUR);
    let mut record = empty();
    let step = AccountStep::Take { units: 1, shortfall: Shortfall::Owed, reference: None };
    assert!(record.apply(step, NOW).1);
    assert_eq!(record.next(NOW).1, Duration::MAX, "a debt does not expire");
}

#[test]
fn references_end_with_their_time() {
    let mut record = empty();
    for number in 0..MOST_OPEN {
        credit(&mut record, 1, CreditExpiry::Never, Some(&number.to_string()));
    }
    let keys = LimiterKeys::new(b"", "bought");
    let (bytes, _) = record.next(NOW);
    let end = NOW.saturating_add(REFERENCE_KEPT);
    let before = AccountRecord::read(Some(&bytes), Timestamp::from_nanos(end.as_nanos() - 1)).unwrap();
    assert!(before.find(keys.credited("0")).is_some() && before.find(keys.charged("0")).is_none());
    assert!(AccountRecord::read(Some(&bytes), end).unwrap().open().is_empty());
}
