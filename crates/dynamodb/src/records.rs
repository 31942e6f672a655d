//! [`DynamoRecords`]: the records of limiters that do not use an algorithm.

use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use tower_sluice::LimiterError;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::{CallLimits, GaveUp, Record, Records, Server};
use tower_sluice::time::Timestamp;

use crate::dynamo::Dynamo;
use crate::fault::{DynamoFault, FaultKind, failed};
use crate::items::Moment;
use crate::table::{EXPIRY, Item, Table, Write, Written, number};

/// Records in a [`Dynamo`]'s table, for requests in flight, queues, prepaid units, free retries, and the most rejected
/// keys. Made by [`Dynamo::records`].
///
/// # Cost
///
/// A read takes one read unit per 4 KB, and a swap one write unit per KB, even if it is not applied. Records are short,
/// unless they hold many entries: units in flight take 24 bytes per process, and the most rejected keys some 100 bytes
/// per key. A process's first swap, and one after its clock was wrong, reads the record before.
///
/// # Accuracy
///
/// Times are by this process's clock, as for a [decision](crate::DynamoStore#accuracy): with clocks within ε, a lease,
/// a departure or an expiry is ε early or late.
#[derive(Clone, Debug)]
#[must_use]
pub struct DynamoRecords(Dynamo);

impl Dynamo {
    /// Returns the records beside the keys' states, in the same table.
    pub fn records(&self) -> DynamoRecords {
        DynamoRecords(self.clone())
    }
}

/// The value, in bytes.
const VALUE: &str = "v";

/// When the record ends, in nanoseconds since 1970. Absent if it never ends.
const END: &str = "e";

/// An item's key has at most 2,048 bytes.
const LONGEST_NAME: usize = 2_000;

/// The key of a record's item. No state's key has this ending, so no two limiters share an item.
fn key(name: &str) -> String {
    format!("{name}:record")
}

fn read_value(item: &Item, now: Timestamp) -> Result<Option<Vec<u8>>, DynamoFault> {
    if number(item, END).is_some_and(|end| now >= Timestamp::from_nanos(end)) {
        return Ok(None);
    }
    match item.get(VALUE) {
        Some(AttributeValue::B(value)) => Ok(Some(value.clone().into_inner())),
        _ => Err(DynamoFault::new(FaultKind::ForeignItem, "an item of a record has no value; delete it")),
    }
}

/// A swap, owning everything that it needs to outlive its caller.
struct Swap {
    table: Table,
    key: String,
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
    lifetime: Duration,
}

impl Swap {
    async fn run(self) -> Result<bool, DynamoFault> {
        let Self { table, key, old, new, lifetime } = self;
        if !table.clock_check.is_right() {
            // Fails if the clock is wrong, by which the record would end at another time.
            table.read(&key).await?;
        }
        let at = Moment { now: table.now(), error: table.clock_error };
        let condition = match old {
            Some(_) => format!("{VALUE} = :old AND (attribute_not_exists({END}) OR {END} > :now)"),
            None => format!("attribute_not_exists({VALUE}) OR {END} <= :now"),
        };
        let write = Write::new("", condition).number(":now", at.now.as_nanos());
        let write = old.into_iter().fold(write, |write, old| write.value(":old", AttributeValue::B(Blob::new(old))));
        let Some(new) = new else { return table.delete_if(&key, write).await };
        let write = write.value(":new", AttributeValue::B(Blob::new(new)));
        let end = at.now.saturating_add(lifetime);
        let write = if end == Timestamp::MAX {
            Write { update: format!("SET {VALUE} = :new REMOVE {END}, {EXPIRY}"), ..write }
        } else {
            let update = format!("SET {VALUE} = :new, {END} = :end, {EXPIRY} = :expiry");
            Write { update, ..write }.number(":end", end.as_nanos()).number(":expiry", at.expiry(end))
        };
        Ok(matches!(table.write(&key, write).await?, Written::Applied(_)))
    }
}

impl DynamoRecords {
    /// Returns the key of a record's item. A name that is too long does not count as a server failure.
    fn key(name: &str) -> Result<String, LimiterError> {
        let problem = || DynamoFault::new(FaultKind::Misconfigured, format!("a name has over {LONGEST_NAME} bytes"));
        if name.len() <= LONGEST_NAME { Ok(key(name)) } else { Err(failed(problem())) }
    }

    async fn call<T: Send + 'static>(
        &self,
        limits: CallLimits,
        call: impl Future<Output = Result<T, DynamoFault>> + Send + 'static,
    ) -> Result<T, LimiterError> {
        let answer = self.0.calls().run(limits, call, DynamoFault::blames_server).await;
        answer.map_err(|reason| self.gave_up(reason))?.map_err(failed)
    }
}

impl Records for DynamoRecords {
    async fn read(&self, name: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        let (table, key) = (self.0.table().clone(), Self::key(name)?);
        let read = async move {
            let item = table.read(&key).await?;
            let now = table.now();
            let value = item.map(|item| read_value(&item, now)).transpose()?.flatten();
            Ok(Record { value, now })
        };
        self.call(limits, read).await
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        if old.is_none() && new.is_none() {
            return Ok(self.read(name, limits).await?.value.is_none());
        }
        let [old, new] = [old, new].map(|value| value.map(Vec::from));
        let swap = Swap { table: self.0.table().clone(), key: Self::key(name)?, old, new, lifetime };
        self.call(limits, swap.run()).await
    }
}

impl Server for DynamoRecords {
    fn timeout(&self) -> Duration {
        self.0.calls().timeout()
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }

    fn secret(&self) -> &[u8] {
        self.0.secret_of_keys()
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.0.health()]
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}
