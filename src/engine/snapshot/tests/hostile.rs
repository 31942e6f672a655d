//! Files that are not snapshots: each is refused, without a panic, and nothing has changed.

use http::HeaderName;
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;
use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use crate::engine::snapshot::format::MOST;
use crate::http::Penalty;
use crate::http::key::HeaderKey;
use crate::util::cases::cases;
use crate::util::effort::rounds;

const POLICIES: usize = 3;

/// A layer that has all kinds of tables.
fn layer() -> RateLimitLayer {
    let clock = clock_at(START);
    let penalty = Penalty::new(Quota::per_hour(1), Duration::from_secs(600)).with_clock(clock.clone());
    RateLimitLayer::new([
        policy("bucket", TokenBucket::new(Quota::per_hour(5)), store(&clock))
            .key(HeaderKey::new(HeaderName::from_static("x-key")))
            .penalty(penalty),
        policy("fixed", FixedWindow::new(Quota::per_hour(5_000_000_000)), store(&clock)),
        policy("sliding", SlidingWindow::new(Quota::per_hour(5)), store(&clock)).quota_fn(|_| None),
    ])
}

fn snapshot() -> Vec<u8> {
    let layer = layer();
    for key in 0..9 {
        let _ = (charge(&layer, "bucket", key, 2), charge(&layer, "fixed", key, 3));
        let _ = asks(&layer, "sliding", key, 1, Some(Quota::per_minute(key + 1)));
    }
    let state = layer.complete().load();
    let penalty = state.policy("bucket").unwrap().lineage.penalty.as_ref().unwrap();
    (0..5_u64).for_each(|key| penalty.advise(&key.into(), Duration::from_secs(60)));
    drop(state);
    written(&layer, START)
}

/// Returns the error, and checks that nothing has changed.
fn refused(bytes: &[u8]) -> SnapshotError {
    let layer = layer();
    let error = restored(&layer, bytes, START).expect_err("it is damaged");
    // A second one can be restored, because no table is in use.
    assert_eq!(restored(&layer, &snapshot(), START).unwrap().policies().len(), POLICIES);
    error
}

#[test]
fn each_truncation_is_refused() {
    let whole = snapshot();
    for end in 0..whole.len() {
        let error = restored(&layer(), &whole[..end], START).expect_err("it is not whole");
        match error {
            SnapshotError::Foreign => assert!(end < 16),
            SnapshotError::Truncated => assert!(end >= 16),
            other => panic!("{end} bytes: {other}"),
        }
    }
    assert!(matches!(refused(&whole[..whole.len() / 2]), SnapshotError::Truncated));
    assert!(matches!(refused(&[&whole[..], &[0]].concat()), SnapshotError::Damaged { part: "its end" }));
}

#[test]
fn each_flipped_bit_is_refused() {
    let whole = snapshot();
    for index in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[index] ^= 1 << (index % 8);
        assert!(restored(&layer(), &damaged, START).is_err(), "byte {index}");
    }
}

#[test]
fn foreign_files_are_refused_with_reasons() {
    let mut whole = snapshot();
    whole[16] = 2;
    let error = refused(&whole).to_string();
    assert!(error.starts_with("the snapshot has version 2 of the format, and this crate knows version 1;"), "{error}");
    let error = refused(b"[[route]]\npath = \"/api\"\n").to_string();
    assert_eq!(error, "the file is not a snapshot of this crate; check its path");
    assert!(matches!(refused(b""), SnapshotError::Foreign));
}

/// A reader that announces ten gigabytes, and records the longest single read.
struct Endless(usize);

impl std::io::Read for Endless {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0 = self.0.max(bytes.len());
        bytes.fill(0xff);
        Ok(bytes.len())
    }
}

#[test]
fn reads_are_bounded_by_the_record_length() {
    let mut head = snapshot()[..17].to_vec();
    for (letter, length) in [(b'p', u32::MAX), (b't', 1 << 20), (b'r', u32::try_from(MOST).unwrap() + 1)] {
        let record = [&head[..], &[letter], &length.to_be_bytes()].concat();
        let mut endless = Endless(0);
        let from = std::io::Read::chain(&record[..], &mut endless);
        let error = Snapshots::new().layer("", &layer()).read(from).unwrap_err();
        assert!(matches!(error, SnapshotError::Damaged { part: "the length of a record" }), "{error}");
        assert_eq!(endless.0, 0);
    }
    head.extend([b'p', 0, 1, 0xff, 0xff]);
    let mut endless = Endless(0);
    assert!(Snapshots::new().layer("", &layer()).read(std::io::Read::chain(&head[..], &mut endless)).is_err());
    assert!(endless.0 <= MOST);
}

/// Makes a file from any records, with the right checksum.
fn forged(records: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = snapshot()[..17].to_vec();
    let put = |bytes: &mut Vec<u8>, letter: u8, payload: &[u8]| {
        bytes.push(letter);
        bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend(payload);
    };
    records.iter().for_each(|(letter, payload)| put(&mut bytes, *letter, payload));
    let digest = Sha256::digest(&bytes);
    put(&mut bytes, b'e', &digest);
    bytes
}

/// Returns a file's records without its end.
fn records(file: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut rest = &file[17..];
    let mut records = Vec::new();
    while rest[0] != b'e' {
        let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
        records.push((rest[0], rest[5..5 + length].to_vec()));
        rest = &rest[5 + length..];
    }
    records
}

#[test]
fn forged_files_equal_written_ones() {
    let whole = snapshot();
    assert_eq!(forged(&records(&whole)), whole);
    assert_eq!(restored(&layer(), &whole, START).unwrap().policies().len(), POLICIES);
}

/// A table that announces more sets than memory has takes no memory.
#[test]
fn an_announced_table_is_not_allocated() {
    use crate::values::snapshot::{Input, put_number};

    let whole = records(&snapshot());
    let table = whole.iter().position(|(letter, payload)| *letter == b't' && payload[0] == 0).unwrap();
    let (_, head) = &whole[table];
    // Its last number is the number of sets.
    let mut last = head.len() - 1;
    while head[last - 1] >= 0x80 {
        last -= 1;
    }
    assert_eq!(Input::new(&head[last..]).u64(), Some(64));
    for (sets, is_error) in [(1_u64 << 60, false), (u64::MAX, false), (1 << 40, false), (1, true), (0, true)] {
        let mut records = whole.clone();
        records[table].1.truncate(last);
        put_number(&mut records[table].1, sets);
        let result = restored(&layer(), &forged(&records), START);
        // On 32 bits, no table has that number, so it is an error by itself.
        let is_error = is_error || usize::try_from(sets).is_err();
        assert_eq!(result.is_err(), is_error, "{sets} sets: {result:?}");
        if let Ok(result) = result {
            assert!(result.not_restored()[0].1.contains("the snapshot is of a table of"), "{result}");
        }
    }
}

proptest! {
    #![proptest_config(cases(rounds(300, 5_000)))]

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..500), has_head: bool) {
        let head = if has_head { snapshot()[..17].to_vec() } else { Vec::new() };
        prop_assert!(restored(&layer(), &[head, bytes].concat(), START).is_err());
    }

    /// With the right checksum, any content is restored or refused, and a layer that has restored it decides.
    #[test]
    fn forged_records_make_no_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6),
        now in prop_oneof![Just(START), any::<u64>()],
        wall in prop_oneof![Just(START), any::<u64>()],
    ) {
        let mut records = records(&snapshot());
        for (record, byte, value) in changes {
            let count = records.len();
            let (_, payload) = &mut records[record.index(count)];
            if !payload.is_empty() {
                let index = byte.index(payload.len());
                payload[index] = value;
            }
        }
        let clock = clock_at(now);
        let layer = RateLimitLayer::new([
            policy("bucket", TokenBucket::new(Quota::per_hour(5)), store(&clock)),
            policy("fixed", FixedWindow::new(Quota::per_hour(5_000_000_000)), store(&clock)),
            policy("sliding", SlidingWindow::new(Quota::per_hour(5)), store(&clock)).quota_fn(|_| None),
        ]);
        let _ = restored(&layer, &forged(&records), wall);
        for key in 0..9 {
            for name in ["bucket", "fixed", "sliding"] {
                let _ = charge(&layer, name, key, 1);
            }
        }
    }
}
