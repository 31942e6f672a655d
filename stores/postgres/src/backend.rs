//! [`PostgresBackend`]: the transitions of one limiter, each in one statement.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::LimiterError;
use tower_sluice::limiter::Receipt;
use tower_sluice::store::NodeHealth;
use tower_sluice::store::remote::{Applied, Backend, CallLimits, GaveUp, Standing, Target, Transition};
use tower_sluice::time::{Clock, Timestamp, Wall};

use crate::fault::{FaultKind, PostgresFault, failed};
use crate::kept::{Fields, Kept, Row, terms};
use crate::pool::Value;
use crate::postgres::Postgres;
use crate::sql::{Kind, Parameter, Statement};

/// The keys of one limiter on PostgreSQL.
#[derive(Debug)]
pub struct PostgresBackend {
    postgres: Postgres,
    name: Arc<str>,
}

/// One key of a limiter, with all that a request needs to outlive its caller.
pub(crate) struct KeyRow<A> {
    pub(crate) postgres: Postgres,
    pub(crate) limiter: Arc<str>,
    pub(crate) algorithm: A,
    /// A UUID.
    pub(crate) key: String,
}

/// The numbers of one statement, beside those of the key.
#[derive(Clone, Copy, Default)]
struct Arguments {
    count: u32,
    cost: u64,
    receipt: u128,
    /// The time on the clock of this process.
    asked: Timestamp,
}

impl PostgresBackend {
    pub(crate) fn new(postgres: &Postgres, name: &str) -> Self {
        Self { postgres: postgres.clone(), name: name.into() }
    }

    /// The secret of the hashes: also the name and the algorithm, so that each limiter has rows of its own.
    pub(crate) fn secret(&self, kind: Kind) -> Vec<u8> {
        let mut secret = Vec::new();
        for part in [self.postgres.secret_of_keys(), self.name.as_bytes(), &[kind.letter()]] {
            secret.extend((part.len() as u64).to_be_bytes());
            secret.extend(part);
        }
        secret
    }

    fn row<A: Kept>(&self, target: &Target<'_, A>) -> KeyRow<A> {
        KeyRow {
            postgres: self.postgres.clone(),
            limiter: Arc::clone(&self.name),
            algorithm: target.algorithm().clone(),
            key: uuid(&target.name()),
        }
    }
}

/// Writes the 128 bits that stand for a key as a UUID, from base64url.
fn uuid(name: &str) -> String {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        _ => 63,
    };
    // The last digit has two bits of them.
    let (last, digits) = name.as_bytes().split_last().expect("22 characters");
    let bits = digits.iter().fold(0, |bits: u128, byte| bits << 6 | u128::from(digit(*byte)));
    format!("{:032x}", bits << 2 | u128::from(digit(*last) >> 4))
}

impl<A: Kept> KeyRow<A> {
    /// Sends a statement. Returns its row, if it has one.
    async fn send(&self, statement: &Statement, arguments: Arguments) -> Result<Option<Fields>, PostgresFault> {
        let [limit, burst, period] = terms(&self.algorithm.quota()).map(number);
        let [since, first, second] = self.algorithm.windows(arguments.asked).map(|at| number(at.as_nanos()));
        let parameter = |parameter: &Parameter| match parameter {
            Parameter::Now => Value::Int(self.postgres.test_clock()),
            Parameter::Key => self.key.clone().into(),
            Parameter::Limiter => self.limiter.to_string().into(),
            Parameter::Count => i64::from(arguments.count).into(),
            Parameter::Cost => number(arguments.cost).into(),
            Parameter::Limit => limit.into(),
            Parameter::Burst => burst.into(),
            Parameter::Period => period.into(),
            Parameter::Since => since.into(),
            Parameter::First => first.into(),
            Parameter::Second => second.into(),
            Parameter::Receipt => arguments.receipt.to_string().into(),
        };
        let parameters: Vec<_> = statement.parameters.iter().map(parameter).collect();
        let rows = self.postgres.run(&statement.text, &parameters).await?;
        Ok(rows.into_iter().next().map(Fields::new))
    }

    /// The time on the clock of this process.
    fn asked(&self) -> Timestamp {
        self.postgres
            .test_clock()
            .and_then(|now| u64::try_from(now).ok())
            .map_or_else(|| Wall.now(), Timestamp::from_nanos)
    }

    pub(crate) async fn apply(self, transition: Transition) -> Result<Applied<A::State>, PostgresFault> {
        match transition {
            Transition::Charge { cost, count } => self.charge(cost, count).await,
            Transition::Refund { cost, receipt } => self.refund(cost, receipt).await,
            Transition::Reset => self.reset().await,
            Transition::Read => self.read().await,
            _ => Err(PostgresFault::new(FaultKind::Other, "not yet")),
        }
    }

    async fn charge(&self, cost: u64, count: u32) -> Result<Applied<A::State>, PostgresFault> {
        let statement = self.postgres.statements().decide(A::KIND);
        let mut arguments = Arguments { count, cost, asked: self.asked(), ..Arguments::default() };
        loop {
            let Some(mut fields) = self.send(statement, arguments).await? else {
                // The clock of this process is so wrong that it sent other windows than the present one of the server.
                arguments.asked = self.read().await?.now;
                continue;
            };
            let now = fields.time()?;
            let row = Row::read(&mut fields)?.ok_or(FaultKind::Unintelligible)?;
            let charged = u32::try_from(fields.unsigned()?).map_err(|_| FaultKind::Unintelligible)?;
            if row.standing.is_in_force(now) {
                let old = row.state_in_force(&self.algorithm, now)?;
                return Ok(Applied { now, old: Some(old), standing: row.standing, kept: None, charged: 0 });
            }
            if !self.algorithm.covers(arguments.asked, now) {
                arguments.asked = now;
                continue;
            }
            let old = row.numbers.before(A::KIND, charged, cost).state(&self.algorithm, now)?;
            return Ok(Applied { now, old: Some(old), standing: Standing::default(), kept: None, charged });
        }
    }

    /// Reads the state as it counts under the quota by which it was written.
    async fn read(&self) -> Result<Applied<A::State>, PostgresFault> {
        let fields = self.send(&self.postgres.statements().read, Arguments::default()).await?;
        let mut fields = fields.ok_or(FaultKind::Unintelligible)?;
        let now = fields.time()?;
        let nothing = Applied { now, old: None, standing: Standing::default(), kept: None, charged: 0 };
        let Some(row) = Row::read(&mut fields)? else { return Ok(nothing) };
        let row = row.corrected(A::KIND, fields.time()?, now);
        if row.standing.is_in_force(now) {
            let old = row.state_in_force(&self.algorithm, now)?;
            return Ok(Applied { old: Some(old), standing: row.standing, ..nothing });
        }
        let another = row.numbers.another_quota(&self.algorithm.quota(), A::KIND);
        let (kept, algorithm) = match another.and_then(|quota| Some((quota, self.algorithm.under(quota)?))) {
            Some((quota, algorithm)) => (Some(quota), algorithm),
            None => (None, self.algorithm.clone()),
        };
        let old = row.numbers.state(&algorithm, now)?;
        Ok(Applied { old: Some(old), kept, ..nothing })
    }

    async fn refund(&self, cost: u64, receipt: Receipt) -> Result<Applied<A::State>, PostgresFault> {
        let nothing = |now| Applied { now, old: None, standing: Standing::default(), kept: None, charged: 0 };
        let mut asked = self.asked();
        let number = match self.algorithm.receipt_number(receipt, asked) {
            Some(number) => number,
            None => {
                // Perhaps the clock of this process is wrong.
                asked = self.read().await?.now;
                let Some(number) = self.algorithm.receipt_number(receipt, asked) else { return Ok(nothing(asked)) };
                number
            }
        };
        let arguments = Arguments { cost, receipt: number, asked, ..Arguments::default() };
        let Some(mut fields) = self.send(self.postgres.statements().refund(A::KIND), arguments).await? else {
            return Ok(nothing(asked));
        };
        let now = fields.time()?;
        let row = Row::read(&mut fields)?.ok_or(FaultKind::Unintelligible)?;
        let standing = if row.standing.is_in_force(now) { row.standing } else { Standing::default() };
        let old = if standing == Standing::default() { None } else { Some(row.state_in_force(&self.algorithm, now)?) };
        Ok(Applied { old, standing, ..nothing(now) })
    }

    async fn reset(&self) -> Result<Applied<A::State>, PostgresFault> {
        let fields = self.send(&self.postgres.statements().reset, Arguments::default()).await?;
        let now = fields.ok_or(FaultKind::Unintelligible)?.time()?;
        Ok(Applied { now, old: None, standing: Standing::default(), kept: None, charged: 0 })
    }
}

/// The greatest `bigint` if it does not fit.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl<A: Kept> Backend<A> for PostgresBackend {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        let call = self.row(target).apply(transition);
        let answer = self.postgres.calls().run(limits, call, PostgresFault::is_of_the_server).await;
        answer.map_err(failed)?.map_err(failed)
    }

    fn timeout(&self) -> Duration {
        self.postgres.calls().timeout()
    }

    fn shares_keys_with(&self, other: &Self) -> bool {
        self.postgres.is_same(&other.postgres) && self.name == other.name
    }

    fn check_fit(&self, algorithm: &A) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(algorithm.fits()?)
    }

    fn keeps_standing(&self, _: &A) -> bool {
        false
    }

    fn is_failing(&self, _: &Target<'_, A>) -> bool {
        self.postgres.calls().is_failing()
    }

    /// A read takes no lock and writes nothing.
    fn reads_are_cheaper(&self) -> bool {
        true
    }

    fn health(&self) -> Vec<NodeHealth> {
        vec![self.postgres.health()]
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        failed(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::uuid;

    #[test]
    fn the_name_of_a_key_is_written_as_a_uuid() {
        assert_eq!(uuid("AAAAAAAAAAAAAAAAAAAAAA"), "0".repeat(32));
        assert_eq!(uuid("_____________________w"), "f".repeat(32));
        assert_eq!(uuid("AAAAAAAAAAAAAAAAAAAAAQ"), format!("{:032x}", 1));
    }
}
