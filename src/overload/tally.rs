//! [`Tally`]: whether most clients give up before they have a response, by the first requests in a cohort.
//!
//! Each key has one vote, however many requests it makes: otherwise one client that sends more than all others, and
//! gives up soon, could lower the limit for everybody. (If the policy has no key, all clients share one.)
//!
//! Requests count in the order of their admission, so that those which give up early are not taken for all. The count
//! is sequential: it ends as soon as it is certain, which is after six requests if all are given up. On a server that
//! gets a request in a second, sixteen would take too long.

use crate::values::PartitionKey;

#[derive(Debug, Default)]
pub(super) struct Tally {
    /// In the order of admission.
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    key: PartitionKey,
    /// When it was admitted, in nanoseconds.
    since: u64,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    is_abandoned: bool,
    time: u64,
}

/// The conclusion from a tally's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Most are given up.
    Lost,
    /// Most are not given up.
    Kept,
    Unknown,
}

/// The most requests in a tally.
const MOST: usize = 18;

/// If this number is given up, and no other request ends, most are given up.
const CERTAIN: u64 = 6;

impl Tally {
    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < MOST
    }

    /// Adds a request that was admitted now, while there is room.
    pub(super) fn follow(&mut self, key: &PartitionKey, now: u64) {
        if self.has_room() {
            self.requests.push(Request { key: key.clone(), since: now, end: None });
        }
    }

    fn find(&self, key: &PartitionKey, since: u64) -> Option<usize> {
        self.requests.iter().position(|it| it.end.is_none() && it.since == since && it.key == *key)
    }

    /// A request was withdrawn, or says nothing.
    pub(super) fn forget(&mut self, key: &PartitionKey, since: u64) {
        if let Some(index) = self.find(key, since) {
            self.requests.remove(index);
        }
    }

    /// A request is over.
    pub(super) fn end(&mut self, key: &PartitionKey, since: u64, now: u64, is_abandoned: bool) {
        if let Some(index) = self.find(key, since) {
            self.requests[index].end = Some(End { is_abandoned, time: now.saturating_sub(since) });
        }
    }

    /// Returns the conclusion. `answered` is a key that was answered lately, which has a vote even without a request in
    /// the tally.
    pub(super) fn verdict(&self, now: u64, answered: Option<&PartitionKey>) -> Verdict {
        let abandoned = self.requests.iter().filter_map(|it| it.end).filter(|end| end.is_abandoned);
        let longest = abandoned.map(|end| end.time).max().unwrap_or(u64::MAX);
        let mut votes: Vec<Vote<'_>> = Vec::new();
        for Request { key, since, end } in &self.requests {
            let Some(end) = end else {
                // Those that were admitted later wait for this one, but not for a stream that goes on for an hour.
                if now.saturating_sub(*since) > longest.saturating_mul(2) {
                    continue;
                }
                break;
            };
            let index = votes.iter().position(|vote| vote.key == key).unwrap_or(votes.len());
            if index == votes.len() {
                votes.push(Vote { key, abandoned: 0, ended: 0 });
            }
            votes[index].abandoned += u64::from(end.is_abandoned);
            votes[index].ended += 1;
        }
        let ended: u64 = votes.iter().map(|vote| vote.ended).sum();
        if let Some(key) = answered.filter(|key| ended > 0 && votes.iter().all(|vote| vote.key != *key)) {
            votes.push(Vote { key, abandoned: 0, ended: 1 });
        }
        // The requests that have ended, as if each key had made the same number.
        let keys = votes.len() as u64;
        let shares: u64 = votes.iter().map(|vote| ONE * vote.abandoned / vote.ended).sum();
        let abandoned = (ended * shares).checked_div(keys).unwrap_or(0);
        let others = ended * ONE - abandoned;
        // One client is not all clients, until a full tally has seen no other.
        let is_one = matches!(&votes[..], [vote] if *vote.key != PartitionKey::SHARED);
        if others > MOST_OTHERS * ONE {
            Verdict::Kept
        } else if abandoned >= CERTAIN * ONE + 2 * others && !(is_one && self.has_room()) {
            Verdict::Lost
        } else {
            Verdict::Unknown
        }
    }
}

/// A key's requests that have ended.
struct Vote<'a> {
    key: &'a PartitionKey,
    abandoned: u64,
    ended: u64,
}

/// One request, in fractions.
const ONE: u64 = 1 << 10;

/// If more requests than these are not given up, no tally can be lost.
const MOST_OTHERS: u64 = 4;

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn tally(requests: &[(&str, bool)]) -> Tally {
        let mut tally = Tally::default();
        for (number, (key, is_abandoned)) in (0..).zip(requests) {
            let key = PartitionKey::from(*key);
            tally.follow(&key, number);
            tally.end(&key, number, number + 50 * MS, *is_abandoned);
        }
        tally
    }

    #[test]
    fn six_unanswered_requests_are_enough() {
        let lost = [("a", true), ("b", true), ("a", true), ("c", true), ("a", true), ("a", true)];
        assert_eq!(tally(&lost[..5]).verdict(MS, None), Verdict::Unknown);
        assert_eq!(tally(&lost).verdict(MS, None), Verdict::Lost);
        assert_eq!(tally(&[("", true); 6]).verdict(MS, None), Verdict::Lost);
    }

    #[test]
    fn one_impatient_client_is_not_all() {
        let most = [[("patient", true); 3].as_slice(), &[("other", false)]].concat().repeat(5);
        assert_eq!(tally(&most).verdict(MS, None), Verdict::Kept);
        let mut alone = vec![("patient", true); MOST - 1];
        assert_eq!(tally(&alone).verdict(MS, None), Verdict::Unknown);
        alone.push(("patient", true));
        assert_eq!(tally(&alone).verdict(MS, None), Verdict::Lost);
        assert_eq!(tally(&alone).verdict(MS, Some(&"other".into())), Verdict::Kept);
    }

    /// Requests that are given up end first.
    #[test]
    fn requests_count_in_admission_order() {
        let (patient, other) = (PartitionKey::from("patient"), PartitionKey::from("other"));
        let mut tally = Tally::default();
        tally.follow(&other, 0);
        (1..8).for_each(|number| tally.follow(&patient, number));
        (1..8).for_each(|number| tally.end(&patient, number, number + 50 * MS, true));
        assert_eq!(tally.verdict(90 * MS, None), Verdict::Unknown);
        // It goes on as streams do.
        assert_eq!(tally.verdict(101 * MS, None), Verdict::Unknown, "one client is not all");
        tally.end(&other, 0, 200 * MS, false);
        assert_eq!(tally.verdict(200 * MS, None), Verdict::Unknown);
    }
}
