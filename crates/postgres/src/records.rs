//! [`PostgresRecords`]: the records of limiters that do not use an algorithm.

use std::fmt::Write;
use std::time::Duration;

use tower_sluice::LimiterError;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::{CallLimits, GaveUp, Record, Records, Server};
use tower_sluice::time::Timestamp;

use crate::fault::{FaultKind, PostgresFault, failed};
use crate::pool::{Answer, Value};
use crate::postgres::Postgres;
use crate::sql::{Parameter, Statement};

/// The second table of a [`Postgres`]: records for requests in flight, queues, prepaid units, references in charges by
/// hand, and free retries. Made by [`Postgres::records`].
///
/// # Cost
///
/// A read and a swap are one statement each. A swap writes the write-ahead log, since prepaid units must not be lost.
/// So the server waits for its disk, unless `synchronous_commit` is off for the role.
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresRecords(Postgres);

impl Postgres {
    /// Returns the records beside its table.
    pub fn records(&self) -> PostgresRecords {
        PostgresRecords(self.clone())
    }
}

/// An entry in PostgreSQL's index has less than 2,704 bytes.
const LONGEST_NAME: usize = 2_000;

/// A record in a statement.
#[derive(Clone, Debug)]
struct Arguments {
    name: String,
    old: Option<String>,
    new: Option<String>,
    /// In microseconds.
    lifetime: Option<i64>,
}

impl PostgresRecords {
    /// Makes a call with one statement.
    async fn call(
        &self,
        limits: CallLimits,
        statement: fn(&Postgres) -> &Statement,
        arguments: Arguments,
    ) -> Result<Vec<Vec<Value>>, LimiterError> {
        // Checked before the call, so that it does not count as a server failure.
        if arguments.name.contains('\0') || arguments.name.len() > LONGEST_NAME {
            let problem = format!("a limiter's name has {LONGEST_NAME} bytes at the most, and no NUL");
            return Err(failed(PostgresFault::new(FaultKind::Encoding, problem)));
        }
        let postgres = self.0.clone();
        let call = async move { send(&postgres, statement(&postgres), arguments).await };
        let answer = self.0.record_calls().run(limits, call, PostgresFault::blames_server).await;
        answer.map_err(|reason| self.gave_up(reason))?.map_err(failed)
    }
}

async fn send(postgres: &Postgres, statement: &Statement, arguments: Arguments) -> Answer {
    let Arguments { name, old, new, lifetime } = arguments;
    let parameters = statement.parameters.iter().map(|parameter| match parameter {
        // It is set when the connection is known.
        Parameter::Session => Value::Text(None),
        Parameter::Name => name.clone().into(),
        Parameter::Old => Value::Text(old.clone()),
        Parameter::New => Value::Text(new.clone()),
        Parameter::Lifetime => Value::Int(lifetime),
        #[cfg(test)]
        Parameter::Now => Value::Int(postgres.test_clock()),
        other => unreachable!("{other:?} is no parameter of a record"),
    });
    let parameters = parameters.collect();
    if statement.locks_rows {
        postgres.run_in_turn(statement, parameters, vec![name]).await
    } else {
        postgres.run(statement, parameters).await
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// A lifetime that PostgreSQL can add to a time: 290,000 years count as forever.
pub(crate) fn micros(lifetime: Duration) -> Option<i64> {
    const FOREVER: i64 = i64::MAX / 16;
    i64::try_from(lifetime.as_nanos().div_ceil(1_000)).ok().filter(|micros| *micros < FOREVER)
}

impl Records for PostgresRecords {
    async fn read(&self, name: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        let arguments = Arguments { name: name.into(), old: None, new: None, lifetime: None };
        let rows = self.call(limits, |postgres| &postgres.statements().record_read, arguments).await?;
        read_record(rows).ok_or_else(|| failed(FaultKind::Unintelligible))
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let statement: fn(&Postgres) -> &Statement = match (old, new) {
            (None, None) => return Ok(self.read(name, limits).await?.value.is_none()),
            (None, Some(_)) => |postgres| &postgres.statements().record_insert,
            (Some(_), Some(_)) => |postgres| &postgres.statements().record_replace,
            (Some(_), None) => |postgres| &postgres.statements().record_delete,
        };
        let [old_text, new_text] = [old, new].map(|value| value.map(hex));
        let arguments = Arguments { name: name.into(), old: old_text, new: new_text, lifetime: micros(lifetime) };
        let is_swapped = !self.call(limits, statement, arguments).await?.is_empty();
        if is_swapped && old.is_none() {
            self.0.note_new_record(name);
        }
        Ok(is_swapped)
    }
}

impl Server for PostgresRecords {
    fn timeout(&self) -> Duration {
        self.0.record_calls().timeout()
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }

    fn secret(&self) -> &[u8] {
        self.0.secret_of_keys()
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.0.record_calls().health()]
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}

/// Reads the time, and the value if there is one.
fn read_record(rows: Vec<Vec<Value>>) -> Option<Record> {
    let mut fields = rows.into_iter().next()?.into_iter();
    let Value::Int(Some(now)) = fields.next()? else { return None };
    let now = Timestamp::from_nanos(u64::try_from(now).ok()?);
    let value = match fields.next()? {
        Value::Text(None) => None,
        Value::Text(Some(text)) => Some(from_hex(&text)?),
        Value::Int(_) => return None,
    };
    Some(Record { value, now })
}
