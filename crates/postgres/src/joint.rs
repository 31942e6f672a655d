//! Decisions on several keys, of any algorithms, in one statement.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use tower_sluice::LimiterError;
use tower_sluice::Quota;
use tower_sluice::store::remote::{
    Alternatives, Applied, CallLimits, JointAnswer, JointBackend, JointCharge, Standing, Target,
};
use tower_sluice::time::{Clock, Monotonic, Timestamp};

use crate::backend::{PostgresBackend, number, uuid};
use crate::fault::{FaultKind, PostgresFault, failed, is_of_another_statement};
use crate::kept::{Fields, Kept, Row, terms};
use crate::pool::Value;
use crate::postgres::Postgres;
use crate::sql::{Kind, Parameter, Statement};

/// A cost above every quota's maximum.
const TOO_MUCH: u64 = Quota::MAX_UNITS + 1;

/// A set of keys has a bit for each, in a `bigint`.
const MOST_KEYS: usize = 62;

/// One key's arguments in a call, and the answer.
#[derive(Clone, Debug)]
pub struct KeyPart {
    kind: Kind,
    key: String,
    limiter: String,
    cost: u64,
    terms: [u64; 3],
    windows: Windows,
    answer: Option<KeyAnswer>,
}

impl KeyPart {
    pub(crate) fn new<A: Kept>(algorithm: &A, key: String, limiter: &str, cost: u64) -> Self {
        let (kind, terms, algorithm) = (A::KIND, terms(&algorithm.quota()), algorithm.clone());
        let windows = Windows(Arc::new(move |asked| algorithm.windows(asked)));
        Self { kind, key, limiter: limiter.to_owned(), cost, terms, windows, answer: None }
    }
}

/// Returns the windows around an instant.
#[derive(Clone)]
pub(crate) struct Windows(Arc<dyn Fn(Timestamp) -> [Timestamp; 3] + Send + Sync>);

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Windows")
    }
}

/// A key's row, as the statement has read it.
#[derive(Clone, Debug)]
pub(crate) struct KeyAnswer {
    pub(crate) now: Timestamp,
    /// The row as it was before, corrected if it is from the future.
    pub(crate) row: Option<Row>,
    pub(crate) is_charged: bool,
}

/// A statement's outcome.
pub(crate) struct Outcome {
    pub(crate) now: Timestamp,
    /// The number of the set that was charged, from 1 on.
    pub(crate) charged: u32,
    pub(crate) answers: Vec<KeyAnswer>,
}

/// Another statement created some of the keys, and nothing was charged; or none of the windows was right.
enum Again {
    AtOnce,
    At(Timestamp),
}

/// A call, owning everything that it needs to outlive its caller.
pub(crate) struct JointCall {
    pub(crate) postgres: Postgres,
    pub(crate) parts: Vec<KeyPart>,
    /// The sets to choose from, a bit for each key. `None` only reads.
    pub(crate) sets: Option<Vec<u64>>,
}

impl JointCall {
    pub(crate) async fn decide(self) -> Result<Outcome, PostgresFault> {
        if let Some(outcome) = self.charge_plainly().await? {
            return Ok(outcome);
        }
        let mut asked = self.postgres.time_here();
        loop {
            match self.send(asked).await {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(Again::AtOnce)) => {}
                Ok(Err(Again::At(now))) => asked = now,
                Err(fault) if is_of_another_statement(&fault) => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Decides on two keys, if both rows are plain. Otherwise returns `None`, and charges nothing.
    async fn charge_plainly(&self) -> Result<Option<Outcome>, PostgresFault> {
        let ([one, other], Some([0b11])) = (&*self.parts, self.sets.as_deref()) else { return Ok(None) };
        if one.cost == 0 || other.cost == 0 || !self.postgres.charges_plainly() {
            return Ok(None);
        }
        let is_in_order = one.key < other.key;
        let [first, second] = if is_in_order { [one, other] } else { [other, one] };
        let Some(statement) = self.postgres.statements().pair([first.kind, second.kind]) else { return Ok(None) };
        let cost = |part: &KeyPart| number(part.cost.min(TOO_MUCH)).into();
        let parameters = statement.parameters.iter().map(|parameter| match parameter {
            #[cfg(test)]
            Parameter::Now => Value::Int(self.postgres.test_clock()),
            Parameter::Key => first.key.clone().into(),
            Parameter::Cost => cost(first),
            Parameter::Limit => number(first.terms[0]).into(),
            Parameter::Burst => number(first.terms[1]).into(),
            Parameter::Period => number(first.terms[2]).into(),
            Parameter::SecondKey => second.key.clone().into(),
            Parameter::SecondCost => cost(second),
            Parameter::SecondLimit => number(second.terms[0]).into(),
            Parameter::SecondBurst => number(second.terms[1]).into(),
            Parameter::SecondPeriod => number(second.terms[2]).into(),
            _ => Value::Text(None),
        });
        let keys = vec![first.key.clone(), second.key.clone()];
        let rows = self.postgres.run_in_turn(statement, parameters.collect(), keys).await?;
        let Some(row) = rows.into_iter().next() else { return Ok(None) };
        let mut fields = Fields::new(row);
        let now = fields.time()?;
        let is_charged = match fields.unsigned()? {
            0 => false,
            2 => true,
            _ => return Err(FaultKind::Unintelligible.into()),
        };
        let mut answer = |part: &KeyPart| {
            let row = Row::read_plain(&mut fields, part.kind, part.terms)?;
            Ok::<_, PostgresFault>(KeyAnswer { now, row: Some(row), is_charged })
        };
        let mut answers = vec![answer(first)?, answer(second)?];
        if !is_in_order {
            answers.reverse();
        }
        Ok(Some(Outcome { now, charged: is_charged.into(), answers }))
    }

    fn statement(&self) -> &Statement {
        let statements = self.postgres.statements();
        match self.sets {
            Some(_) => statements.joint(self.parts.iter().map(|part| part.kind)),
            None => &statements.joint_read,
        }
    }

    async fn send(&self, asked: Timestamp) -> Result<Result<Outcome, Again>, PostgresFault> {
        let statement = self.statement();
        let windows: Vec<_> = self.parts.iter().map(|part| (part.windows.0)(asked)).collect();
        let each = |field: &dyn Fn(&KeyPart) -> String| array(self.parts.iter().map(field));
        let instants =
            |index: usize| array(windows.iter().map(|windows| number(windows[index].as_nanos()).to_string()));
        let sets = || array(self.sets.iter().flatten().map(u64::to_string));
        let parameters = statement.parameters.iter().map(|parameter| match parameter {
            #[cfg(test)]
            Parameter::Now => Value::Int(self.postgres.test_clock()),
            Parameter::Session => Value::Text(None),
            Parameter::Keys => each(&|part| part.key.clone()),
            Parameter::Limiters => each(&|part| quoted(&part.limiter)),
            Parameter::Kinds => each(&|part| char::from(part.kind.letter()).to_string()),
            Parameter::Costs => each(&|part| part.cost.min(TOO_MUCH).to_string()),
            Parameter::Limits => each(&|part| part.terms[0].to_string()),
            Parameter::Bursts => each(&|part| part.terms[1].to_string()),
            Parameter::Periods => each(&|part| part.terms[2].to_string()),
            Parameter::Sinces => instants(0),
            Parameter::Firsts => instants(1),
            Parameter::Seconds => instants(2),
            _ => sets(),
        });
        let parameters = parameters.collect();
        let answer = if statement.locks_rows {
            let keys = self.parts.iter().map(|part| part.key.clone()).collect();
            self.postgres.run_in_turn(statement, parameters, keys).await
        } else {
            self.postgres.run(statement, parameters).await
        };
        self.read(answer?)
    }

    /// Reads the answer, which has a row for each key, in any order.
    fn read(&self, rows: Vec<Vec<Value>>) -> Result<Result<Outcome, Again>, PostgresFault> {
        let mut answers: Vec<Option<KeyAnswer>> = vec![None; self.parts.len()];
        let mut outcome = Outcome { now: Timestamp::ZERO, charged: 0, answers: Vec::new() };
        for row in rows {
            let mut fields = Fields::new(row);
            let now = fields.time()?;
            let charged = fields.int()?.ok_or(FaultKind::Unintelligible)?;
            let is_covered = fields.unsigned()? == 1;
            let bit = fields.unsigned()?;
            if !is_covered {
                return Ok(Err(Again::At(now)));
            }
            let Ok(charged) = u32::try_from(charged) else { return Ok(Err(Again::AtOnce)) };
            let (part, answer) = usize::try_from(bit.trailing_zeros())
                .ok()
                .and_then(|index| Some((self.parts.get(index)?, answers.get_mut(index)?)))
                .ok_or(FaultKind::Unintelligible)?;
            let set = charged.checked_sub(1).and_then(|index| self.sets.as_ref()?.get(index as usize).copied());
            let row = match Row::read(&mut fields)? {
                Some(row) => Some(row.corrected(part.kind, fields.time()?, now)),
                None => None,
            };
            let is_free = part.cost == 0 || row.as_ref().is_some_and(|row| row.standing.is_in_force(now));
            let is_charged = set.is_some_and(|set| set & bit != 0) && !is_free;
            *answer = Some(KeyAnswer { now, row, is_charged });
            (outcome.now, outcome.charged) = (now, charged);
        }
        outcome.answers = answers.into_iter().collect::<Option<_>>().ok_or(FaultKind::Unintelligible)?;
        // Each may be a new row.
        for (part, answer) in self.parts.iter().zip(&outcome.answers) {
            if answer.is_charged && answer.row.is_none() {
                self.postgres.note_new_row(&part.key);
            }
        }
        Ok(Ok(outcome))
    }
}

fn array(values: impl Iterator<Item = String>) -> Value {
    Value::from(format!("{{{}}}", values.collect::<Vec<_>>().join(",")))
}

/// A text as an element of an array.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl JointBackend for PostgresBackend {
    type Part = KeyPart;
    type Caller = Postgres;

    fn server(&self) -> usize {
        self.postgres().address()
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.postgres().calls().timeout()
    }

    fn caller(&self) -> Postgres {
        self.postgres().clone()
    }

    fn can_share_a_call(&self, one: &KeyPart, other: &KeyPart) -> bool {
        one.key != other.key
    }

    async fn decide(
        caller: &Postgres,
        parts: &mut [&mut KeyPart],
        alternatives: Option<&Alternatives>,
        limits: CallLimits,
    ) -> Result<JointAnswer, LimiterError> {
        if parts.len() > MOST_KEYS {
            return Err(failed(FaultKind::TooManyKeys));
        }
        let sets = alternatives.map(|alternatives| {
            let sets = alternatives.sets().map(|set| set.iter().fold(0, |bits, index| bits | 1_u64 << index));
            let sets: Vec<u64> = sets.collect();
            // An empty list stands for all keys.
            if sets.is_empty() { vec![(1 << parts.len()) - 1] } else { sets }
        });
        let copies = parts.iter().map(|part| (**part).clone()).collect();
        let call = JointCall { postgres: caller.clone(), parts: copies, sets };
        let sent = Monotonic.now();
        let outcome = caller.calls().run(limits, call.decide(), PostgresFault::blames_server).await;
        let Outcome { now, charged, answers } = outcome.map_err(failed)?.map_err(failed)?;
        for (part, answer) in parts.iter_mut().zip(answers) {
            part.answer = Some(answer);
        }
        Ok(JointAnswer { charged, now, sent })
    }

    fn wants_single_keys(error: &LimiterError) -> bool {
        let fault = Error::source(error).and_then(|source| source.downcast_ref::<PostgresFault>());
        fault.is_some_and(|fault| fault.kind() == FaultKind::TooManyKeys)
    }
}

impl<A: Kept> JointCharge<A> for PostgresBackend {
    fn part(&self, target: &Target<'_, A>, cost: u64) -> KeyPart {
        KeyPart::new(target.algorithm(), uuid(&target.name()), self.name(), cost)
    }

    fn read_part(&self, target: &Target<'_, A>, part: &KeyPart) -> Result<Applied<A::State>, LimiterError> {
        let KeyAnswer { now, row, is_charged } =
            part.answer.as_ref().ok_or_else(|| failed(FaultKind::Unintelligible))?;
        let now = *now;
        let nothing = Applied { now, old: None, standing: Standing::default(), kept: None, charged: 0 };
        let charged = u32::from(*is_charged);
        let Some(row) = row else { return Ok(Applied { charged, ..nothing }) };
        if row.standing.is_in_force(now) {
            let old = row.state_in_force(target.algorithm(), now).map_err(failed)?;
            return Ok(Applied { old: Some(old), standing: row.standing, ..nothing });
        }
        let old = row.numbers.state(target.algorithm(), now).map_err(failed)?;
        Ok(Applied { old: Some(old), charged, ..nothing })
    }
}
