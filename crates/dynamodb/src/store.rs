//! [`DynamoStore`]: one limiter's settings.

use std::time::Duration;

use tower_sluice::store::OpenStore;
use tower_sluice::store::remote::{RemoteStore, RemoteTable};

use crate::backend::DynamoBackend;
use crate::dynamo::Dynamo;
use crate::items::Kept;

/// The settings of a limiter whose keys are on DynamoDB, where all processes that use the same name share them.
///
/// [`RateLimiter::new`](tower_sluice::RateLimiter::new) makes the limiter from an algorithm and these settings.
///
/// # Quotas
///
/// All quotas fit: limits, bursts and costs up to [`Quota::MAX_UNITS`](tower_sluice::Quota::MAX_UNITS)
/// (999,999,999,999,999), per nanosecond or per century. So you can limit ten terabytes a month to the byte. DynamoDB's
/// numbers have 38 digits, and a bucket's greatest number has 37. Staggered windows do not fit: see
/// [`Unfit`](crate::Unfit).
///
/// # Cost
///
/// | a decision by | requests |
/// |---|---|
/// | a bucket | one write, and a second one if the first was predicted wrongly: 1.00 writes on average for one process, at most 1.5 for many, at any load below the limit |
/// | a fixed window, a window of the calendar | one write |
/// | a sliding window | one write, and one read per key, window and process |
/// | a key that is known here as used up | nothing but a look at a table in this process |
/// | a key that is known here as used up, asked again | one read, at most once per half a second and process |
/// | a key that is used up, which is not known here | one read or one write that does nothing, depending on what this process remembers of the key |
/// | [leases](Self::leasing) of *n* requests | a share of the above: 1/*n* of it for a key in demand |
///
/// A process knows up to 8,192 keys as used up: all of 1,000, and 96 % of 4,000 in use at a time. It makes one read
/// more at its start, and while its clock is wrong. An item takes about 100 bytes, 140 with the greatest quota, at most
/// 450 with a name of 255 bytes, and at most 650 with the reason for a ban by hand. So each write takes one write unit
/// (up to 1,024 bytes), and each read one read unit. Refunds and resets take one write each; resetting a window also
/// takes a read.
///
/// Requests for one key that come while a call for it is in flight on their runtime share the next call.
///
/// # Accuracy
///
/// DynamoDB's expressions cannot read a clock, so each process decides by its wall clock, which must be synchronised:
/// see [`Dynamo::clock_error`]. With equal clocks, decisions are the algorithm's, exact over all processes. Windows
/// begin by each process's clock.
///
/// If a process's clock differs from the `Date` of DynamoDB's answers by more than a second and the round trip, the
/// process makes no decision and writes nothing until an answer shows the clock to be right. Meanwhile its decisions
/// fail, and the policy [says](https://docs.rs/tower-sluice/latest/tower_sluice/enum.FailureMode.html) what happens.
///
/// # Another quota
///
/// A limiter with another quota may have the same name, so that processes with the old and the new quota share the
/// state while you roll out a change. A bucket owes the same number of tokens after it. Each change of the quota costs
/// a write, so do not let two quotas alternate for long. A window continues to count under another limit. With another
/// period, or another calendar, windows start without a count.
///
/// # Bans, allowances and debts
///
/// A key's item holds its
/// [ban](https://docs.rs/tower-sluice/latest/tower_sluice/struct.Penalty.html#on-several-machines), its ban or
/// [allowance](https://docs.rs/tower-sluice/latest/tower_sluice/struct.LimitsHandle.html#method.allow) by hand, and the
/// units that it [owes](https://docs.rs/tower-sluice/latest/tower_sluice/struct.Policy.html#method.owe_shortfalls)
/// beyond its budget. Each write has the condition that there is none, and otherwise returns the item, so a decision
/// takes no further request. Each change takes a read and a write; the first charge after the end takes two more
/// writes. Refunds for earlier charges do nothing meanwhile.
///
/// | attribute | content |
/// |---|---|
/// | `b`, `d`, `a` | until when it is banned, owes something, is allowed: nanoseconds since 1970. Zero or no `a`: never |
/// | `r` | the reason of the operator, at most 200 bytes; none without one |
/// | `s` | the time of the change, later than that of the change that it replaces |
///
/// An item without a ban, an allowance and a debt does not have these attributes, and costs no more. While a key owes
/// something, its item's state is as of the end of the debt.
///
/// With a fixed window or a calendar window, each window has an item, and a change is written into the items of all
/// windows until its end: the present one first, and then the others together. So it takes two reads, and a write for
/// each window. It is written into 64 windows at most: a ban or an allowance ends with the 64th, and its answer says
/// so. That is a minute if a window takes a second. To ban keys for longer, use a bucket or a sliding window, which
/// have one item per key. For other processes, a longer debt ends with the 64th window, too.
///
/// If several processes change one key at once, the changes are made one after the other, and the last one is in force
/// in all windows. If a change by hand fails, make it again, because it may have been made in part.
///
/// # Free retries, reported shares, and who is rejected most
///
/// They are [records](crate::DynamoRecords) in the table, which all processes share: see [`RemoteStore::records`].
///
/// # When DynamoDB fails, throttles, or does not answer
///
/// A [decision](tower_sluice::Limiter::decide) fails within the [timeout](Dynamo::timeout), and its error's source is a
/// [`DynamoFault`](crate::DynamoFault). Five failures in a row open the circuit breaker, and decisions fail at once;
/// throttling is such a failure, and never a rejection. For the local fallback, the limiter also counts in memory the
/// requests that DynamoDB admits.
///
/// If one of our items has foreign content, its requests fail, and the item is left as it is. A
/// [reset](tower_sluice::limiter::Mode::Reset) deletes it.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged.
#[derive(Debug)]
#[must_use]
pub struct DynamoStore(RemoteStore<DynamoBackend>);

impl DynamoStore {
    /// Creates the settings for the limiter named `name`. Limiters that share a table need different names, and
    /// limiters in several processes that share their budgets need the same name.
    ///
    /// # Panics
    ///
    /// If `name` is longer than 255 bytes.
    #[track_caller]
    pub fn new(dynamo: &Dynamo, name: &str) -> Self {
        if let Err(problem) = check_name(name) {
            panic!("{problem}");
        }
        let store = RemoteStore::new(DynamoBackend::new(dynamo, name)).secret(dynamo.secret_of_keys());
        Self(store.records(dynamo.records(), name))
    }

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls: see
    /// [`RemoteStore::leasing`].
    ///
    /// # Panics
    ///
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024.
    #[track_caller]
    pub fn leasing(self, most: u32, lifetime: Duration) -> Self {
        Self(self.0.leasing(most, lifetime))
    }

    /// Makes a separate call for every request that the process cannot decide by itself: see
    /// [`RemoteStore::without_coalescing`].
    pub fn without_coalescing(self) -> Self {
        Self(self.0.without_coalescing())
    }
}

/// Checks a limiter's name, with which its items' keys begin.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    match name.len() {
        0..=255 => Ok(()),
        length => Err(format!("the name of a limiter on DynamoDB has 255 bytes at the most, not {length}; shorten it")),
    }
}

/// One limiter's keys on DynamoDB, made from a [`DynamoStore`].
pub type DynamoTable<S> = RemoteTable<S, DynamoBackend>;

impl<A: Kept> OpenStore<A> for DynamoStore {
    type Table = DynamoTable<A::State>;

    /// # Panics
    ///
    /// If DynamoDB cannot keep this algorithm: see [`Unfit`](crate::Unfit).
    #[track_caller]
    fn open(self, algorithm: &A) -> Self::Table {
        self.0.open(algorithm)
    }
}
