//! [`PostgresBackend`]: one limiter's transitions, each in one statement.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::LimiterError;
use tower_sluice::limiter::{Override, OverrideReason, Receipt};
use tower_sluice::store::remote::{
    Applied, Attempts, Backend, BanGrowth, CallLimits, Calls, GaveUp, KeyRead, Parts, Standing, Target, Transition,
};
use tower_sluice::store::{NodeHealth, SharingStats};
use tower_sluice::time::Timestamp;

use crate::fault::{FaultKind, PostgresFault, failed, is_of_another_statement};
use crate::kept::{Fields, Kept, Numbers, Row, terms};
use crate::pool::Value;
use crate::postgres::Postgres;
use crate::sql::{Kind, Parameter, Statement};

/// One limiter's keys on PostgreSQL.
#[derive(Debug)]
pub struct PostgresBackend {
    postgres: Postgres,
    name: Arc<str>,
    /// How often another process was faster.
    lost: Arc<AtomicU64>,
}

/// One key of a limiter, owning everything that a request needs to outlive its caller.
pub(crate) struct KeyRow<A> {
    pub(crate) postgres: Postgres,
    pub(crate) limiter: Arc<str>,
    pub(crate) lost: Arc<AtomicU64>,
    pub(crate) algorithm: A,
    /// A UUID.
    pub(crate) key: String,
}

/// A statement's arguments, without the key and its quota.
#[derive(Clone, Default)]
struct Arguments {
    count: u32,
    cost: u64,
    receipt: u128,
    /// This process's clock.
    asked: Timestamp,
    change: StandingChange,
    written: Option<Written>,
    /// The name of a reference's record, and for how many microseconds it is known.
    reference: Option<(String, Option<i64>)>,
}

/// A ban, or a change to one by hand.
#[derive(Clone, Default)]
pub(crate) struct StandingChange {
    /// By an operator, so that it replaces a ban and an allowance that have begun.
    pub(crate) by_hand: bool,
    /// The lengths of the first ban, the second one, and so on. Empty if the key is not banned.
    pub(crate) spans: Vec<Duration>,
    /// How long after its end a ban counts, if bans grow.
    pub(crate) remembered: Option<Duration>,
    pub(crate) allowed: Option<Duration>,
    pub(crate) reason: OverrideReason,
}

/// A new row, which replaces the row that was read.
#[derive(Clone)]
pub(crate) struct Written {
    numbers: Numbers,
    /// The time from which decisions are the same as without a state.
    ends: Timestamp,
    standing: Standing,
    read_at: Timestamp,
    version: Version,
}

/// The transaction that has written a row; `None` if there is no row.
pub(crate) type Version = Option<String>;

impl PostgresBackend {
    pub(crate) fn new(postgres: &Postgres, name: &str) -> Self {
        Self { postgres: postgres.clone(), name: name.into(), lost: Arc::default() }
    }

    /// The secret for the hashes. It contains the name and the algorithm, too, so that each limiter has its own rows.
    pub(crate) fn secret(&self, kind: Kind) -> Vec<u8> {
        let mut secret = Vec::new();
        for part in [self.postgres.secret_of_keys(), self.name.as_bytes(), &[kind.letter()]] {
            secret.extend((part.len() as u64).to_be_bytes());
            secret.extend(part);
        }
        secret
    }

    pub(crate) const fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes a call, which continues if its caller is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        limits: CallLimits,
        call: impl Future<Output = Result<T, PostgresFault>> + Send + 'static,
    ) -> Result<T, LimiterError> {
        Self::run_by(self.postgres.calls(), limits, call).await
    }

    /// Makes a call that reads or writes the table of records, too. Its failures do not affect limits over time.
    pub(crate) async fn run_with_record<T: Send + 'static>(
        &self,
        limits: CallLimits,
        call: impl Future<Output = Result<T, PostgresFault>> + Send + 'static,
    ) -> Result<T, LimiterError> {
        Self::run_by(self.postgres.record_calls(), limits, call).await
    }

    async fn run_by<T: Send + 'static>(
        calls: &Calls,
        limits: CallLimits,
        call: impl Future<Output = Result<T, PostgresFault>> + Send + 'static,
    ) -> Result<T, LimiterError> {
        calls.run(limits, call, PostgresFault::blames_server).await.map_err(failed)?.map_err(failed)
    }

    pub(crate) fn row<A: Kept>(&self, target: &Target<'_, A>) -> KeyRow<A> {
        KeyRow {
            postgres: self.postgres.clone(),
            limiter: Arc::clone(&self.name),
            lost: Arc::clone(&self.lost),
            algorithm: target.algorithm().clone(),
            key: uuid(&target.name()),
        }
    }
}

/// The lengths of bans, up to the longest one.
fn ban(span: Duration, growth: Option<BanGrowth>) -> StandingChange {
    let Some(growth) = growth else { return StandingChange { spans: vec![span], ..StandingChange::default() } };
    let mut spans = Vec::new();
    for before in 0.. {
        let span = growth.ban_after(before);
        // Later bans are no longer than the longest.
        if spans.last() == Some(&span) {
            break;
        }
        spans.push(span);
    }
    StandingChange { spans, remembered: Some(growth.forgotten_after()), ..StandingChange::default() }
}

/// An operator's change, derived from the standing that it would make at the beginning of time.
fn override_by_hand(by_hand: Override) -> StandingChange {
    let standing = Standing::default().overridden(Timestamp::ZERO, by_hand);
    let span = |until: Timestamp| (until > Timestamp::ZERO).then(|| until.saturating_since(Timestamp::ZERO));
    StandingChange {
        by_hand: true,
        spans: span(standing.banned_until).into_iter().collect(),
        allowed: span(standing.allowed_until),
        reason: standing.reason,
        ..StandingChange::default()
    }
}

/// Writes a key's 128 bits as a UUID, from base64url.
pub(crate) fn uuid(name: &str) -> String {
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
    /// Sends a statement and returns its row, if it has one.
    async fn send(&self, statement: &Statement, arguments: Arguments) -> Result<Option<Fields>, PostgresFault> {
        let [limit, burst, period] = terms(&self.algorithm.quota()).map(number);
        let [since, first, second] = self.algorithm.windows(arguments.asked).map(|at| number(at.as_nanos()));
        let Arguments { change, written, .. } = &arguments;
        let written = written.as_ref();
        let standing = written.map_or(Standing::default(), |written| written.standing);
        let reason = if written.is_some() { standing.reason } else { change.reason };
        let parameter = |parameter: &Parameter| match parameter {
            #[cfg(test)]
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
            Parameter::Spans => array(&change.spans),
            Parameter::Allowed => Value::Int(change.allowed.map(nanos)),
            Parameter::Reason => Value::Text((!reason.is_none()).then(|| reason.as_str().to_owned())),
            Parameter::Remembered => Value::Int(change.remembered.map(nanos)),
            Parameter::ByHand => i64::from(change.by_hand).into(),
            Parameter::Number => written.map_or(0, |written| written.numbers.number).to_string().into(),
            Parameter::Previous => number(written.map_or(0, |written| written.numbers.previous)).into(),
            Parameter::Used => number(written.map_or(0, |written| written.numbers.used)).into(),
            Parameter::Ends => written.map_or(0, |written| written.ends.as_nanos()).to_string().into(),
            Parameter::BannedUntil => until(standing.banned_until),
            Parameter::OwingUntil => until(standing.owing_until),
            Parameter::AllowedUntil => until(standing.allowed_until),
            Parameter::Written => number(written.map_or(0, |written| written.read_at.as_nanos())).into(),
            Parameter::Version => Value::Text(written.and_then(|written| written.version.clone())),
            Parameter::Name => Value::Text(arguments.reference.as_ref().map(|(name, _)| name.clone())),
            Parameter::Lifetime => Value::Int(arguments.reference.as_ref().and_then(|(_, lifetime)| *lifetime)),
            // Filled in with the connection, or only in statements on several keys.
            _ => Value::Text(None),
        };
        let parameters: Vec<_> = statement.parameters.iter().map(parameter).collect();
        let answer = if statement.locks_rows {
            self.postgres.run_in_turn(statement, parameters, vec![self.key.clone()]).await
        } else {
            self.postgres.run(statement, parameters).await
        };
        Ok(answer?.into_iter().next().map(Fields::new))
    }

    pub(crate) async fn apply(
        self,
        transition: Transition,
        deadline: Instant,
    ) -> Result<Applied<A::State>, PostgresFault> {
        match transition {
            Transition::Charge { cost, count } => self.charge(cost, count).await,
            Transition::Refund { cost, receipt } => self.refund(cost, receipt).await,
            Transition::Reset => self.reset().await,
            Transition::Ban { span, growth } => self.stand(ban(span, growth)).await,
            Transition::Override(by_hand) => self.stand(override_by_hand(by_hand)).await,
            Transition::Owe { units } => self.owe(units, Attempts::new(deadline)).await,
            _ => self.read().await,
        }
    }

    async fn charge(&self, cost: u64, count: u32) -> Result<Applied<A::State>, PostgresFault> {
        let mut arguments = Arguments { count, cost, asked: self.postgres.time_here(), ..Arguments::default() };
        loop {
            let Some((now, row, charged)) = self.charge_once(&arguments).await? else {
                // This process's clock is so wrong that the windows it sent do not include the server's present one.
                arguments.asked = self.read().await?.now;
                continue;
            };
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

    /// Returns the time, the row after the charge, and the number of charged requests. Returns `None` if the row is new
    /// and begins in a window that this process did not send.
    async fn charge_once(&self, arguments: &Arguments) -> Result<Option<(Timestamp, Row, u32)>, PostgresFault> {
        let (quota, [plain, whole]) = (terms(&self.algorithm.quota()), self.postgres.statements().charge(A::KIND));
        // If several requests for one key came at the same time, the other statement decides on them, because it
        // counts.
        let is_plain = arguments.count == 1 && self.postgres.charges_plainly();
        if let Some(mut fields) = if is_plain { self.send(plain, arguments.clone()).await? } else { None } {
            let (now, charged) = (fields.time()?, fields.count()?);
            return Ok(Some((now, Row::read_plain(&mut fields, A::KIND, quota)?, charged)));
        }
        let Some(mut fields) = self.send(whole, arguments.clone()).await? else { return Ok(None) };
        let (now, row) = (fields.time()?, Row::read_brief(&mut fields, quota)?);
        let charged = fields.count()?;
        if fields.unsigned()? == 1 {
            self.postgres.note_new_row(&self.key);
        }
        Ok(Some((now, row, charged)))
    }

    /// Reads the state, converted from the quota by which it was written.
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
        let mut asked = self.postgres.time_here();
        let number = match self.algorithm.receipt_number(receipt, asked) {
            Some(number) => number,
            None => {
                // This process's clock may be wrong.
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

    /// Changes the key's ban or allowance.
    pub(crate) async fn stand(&self, change: StandingChange) -> Result<Applied<A::State>, PostgresFault> {
        let arguments = Arguments { change, ..Arguments::default() };
        let fields = self.send(self.postgres.statements().stand(A::KIND), arguments).await?;
        let mut fields = fields.ok_or(FaultKind::Unintelligible)?;
        let now = fields.time()?;
        let row = Row::read(&mut fields)?.ok_or(FaultKind::Unintelligible)?;
        let standing = if row.standing.is_in_force(now) { row.standing } else { Standing::default() };
        let old = Some(row.state_in_force(&self.algorithm, now)?);
        Ok(Applied { now, old, standing, kept: None, charged: 0 })
    }

    /// Charges the remaining units, and lets the key owe the rest. A debt may span many windows, which only the
    /// algorithm counts. So this reads, and then writes unless the row has changed meanwhile.
    async fn owe(&self, units: u64, mut attempts: Attempts) -> Result<Applied<A::State>, PostgresFault> {
        loop {
            let KeyRead { now, state, standing: before, version, .. } = self.read_to_replace(None).await?;
            let (standing, state) = before.charge(&self.algorithm, state, now, units);
            let applied = Applied { now, old: state, standing, kept: None, charged: 0 };
            if before.is_allowed(now)
                || self.replace(self.written(now, standing, state.as_ref(), version), None).await?
            {
                return Ok(applied);
            }
            attempts.lost().await?;
        }
    }

    /// Reads the key to replace it, converted to the caller's quota. `reference` is a record's name.
    pub(crate) async fn read_to_replace(
        &self,
        reference: Option<String>,
    ) -> Result<KeyRead<A::State, Version>, PostgresFault> {
        let statements = self.postgres.statements();
        let has_reference = reference.is_some();
        let statement = if has_reference { &statements.hand_read } else { &statements.read };
        let reference = reference.map(|name| (name, None));
        let fields = self.send(statement, Arguments { reference, ..Arguments::default() }).await?;
        let mut fields = fields.ok_or(FaultKind::Unintelligible)?;
        let now = fields.time()?;
        let is_known = has_reference && fields.unsigned()? == 1;
        let Some(row) = Row::read(&mut fields)? else {
            return Ok(KeyRead { now, state: None, standing: Standing::default(), is_known, version: None });
        };
        let row = row.corrected(A::KIND, fields.time()?, now);
        let version = fields.text()?;
        let standing = if row.standing.is_in_force(now) { row.standing } else { Standing::default() };
        let state = row.numbers.state(&self.algorithm, now.max(standing.owing_until))?;
        Ok(KeyRead { now, state: Some(state), standing, is_known, version })
    }

    /// Returns the row with this content, to replace the row that was read at `now`.
    pub(crate) fn written(
        &self,
        read_at: Timestamp,
        standing: Standing,
        state: Option<&A::State>,
        version: Version,
    ) -> Written {
        let ends = state.map_or(Timestamp::ZERO, |state| self.algorithm.expires_at(state));
        Written { numbers: Numbers::of(&self.algorithm, state), ends, standing, read_at, version }
    }

    /// Replaces the row, unless it has changed, and writes the reference's record, unless the reference is known: its
    /// name, and for how many microseconds. Does both or nothing, and returns whether it did.
    pub(crate) async fn replace(
        &self,
        written: Written,
        reference: Option<(String, Option<i64>)>,
    ) -> Result<bool, PostgresFault> {
        let statements = self.postgres.statements();
        let is_new = written.version.is_none();
        let statement = match (&reference, is_new) {
            (None, false) => &statements.swap,
            (None, true) => &statements.insert,
            (Some(_), false) => &statements.hand_swap,
            (Some(_), true) => &statements.hand_insert,
        };
        let name = reference.as_ref().map(|(name, _)| name.clone());
        let sent = self.send(statement, Arguments { written: Some(written), reference, ..Arguments::default() }).await;
        let is_replaced = match sent {
            Err(fault) if is_of_another_statement(&fault) => false,
            sent => sent?.is_some(),
        };
        if !is_replaced {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        if is_new {
            self.postgres.note_new_row(&self.key);
        }
        name.iter().for_each(|name| self.postgres.note_new_record(name));
        Ok(true)
    }

    async fn reset(&self) -> Result<Applied<A::State>, PostgresFault> {
        let fields = self.send(&self.postgres.statements().reset, Arguments::default()).await?;
        let now = fields.ok_or(FaultKind::Unintelligible)?.time()?;
        Ok(Applied { now, old: None, standing: Standing::default(), kept: None, charged: 0 })
    }
}

/// An array of spans. NULL if it is empty.
fn array(spans: &[Duration]) -> Value {
    let spans: Vec<_> = spans.iter().map(|span| nanos(*span).to_string()).collect();
    Value::Text((!spans.is_empty()).then(|| format!("{{{}}}", spans.join(","))))
}

/// The end of a standing. NULL: never.
fn until(at: Timestamp) -> Value {
    Value::Text((at > Timestamp::ZERO).then(|| at.as_nanos().to_string()))
}

/// The greatest `bigint`, which is 292 years, if it does not fit.
fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

/// The greatest `bigint` if it does not fit.
pub(crate) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl<A: Kept> Backend<A> for PostgresBackend {
    async fn apply(
        &self,
        target: &Target<'_, A>,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<Applied<A::State>, LimiterError> {
        self.run(limits, self.row(target).apply(transition, limits.deadline)).await
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
        true
    }

    fn is_failing(&self, _: &Target<'_, A>) -> bool {
        self.postgres.calls().is_failing()
    }

    /// A read takes no lock and writes nothing.
    fn reads_are_cheaper(&self) -> bool {
        true
    }

    fn stats(&self) -> SharingStats {
        let mut stats = SharingStats::default();
        stats.lost_swaps = self.lost.load(Ordering::Relaxed);
        stats
    }

    fn parts(&self) -> Parts<A, Self> {
        Parts::none().joint().by_hand()
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
    fn a_keys_name_is_a_uuid() {
        assert_eq!(uuid("AAAAAAAAAAAAAAAAAAAAAA"), "0".repeat(32));
        assert_eq!(uuid("_____________________w"), "f".repeat(32));
        assert_eq!(uuid("AAAAAAAAAAAAAAAAAAAAAQ"), format!("{:032x}", 1));
    }
}
