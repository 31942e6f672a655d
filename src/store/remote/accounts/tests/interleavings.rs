//! Tries all orders in which processes that enter one reference can make their calls, with crashes after any call and
//! lost answers.
//!
//! The search runs the code itself: each call of a process waits until the search answers it. A state consists of the
//! server's values, the answers that each process has had, and the calls in flight. The search tries each continuation
//! from each state once.

use std::collections::{BTreeMap, HashSet};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

use super::super::record::AccountRecord;
use super::super::{AccountDone, AccountReply, AccountStep, Accounts, CreditExpiry, Shortfall};
use crate::store::remote::limiter_keys::LimiterKeys;
use crate::store::remote::{CallLimits, Record, Records, Server};
use crate::values::time::Timestamp;
use crate::values::{LimiterError, PartitionKey};

const NOW: Timestamp = Timestamp::from_nanos(1_700_000_000_000_000_000);

#[derive(Clone, Debug)]
enum Call {
    Read(String),
    Swap { name: String, old: Option<Vec<u8>>, new: Option<Vec<u8>> },
}

#[derive(Clone, Debug)]
enum Reply {
    Value(Option<Vec<u8>>),
    Swapped(bool),
    Lost,
}

type Values = BTreeMap<String, Vec<u8>>;

impl Call {
    fn apply(&self, values: &mut Values) -> Reply {
        match self {
            Self::Read(name) => Reply::Value(values.get(name).cloned()),
            Self::Swap { name, old, new } => {
                let is_same = values.get(name) == old.as_ref();
                match new {
                    Some(new) if is_same => drop(values.insert(name.clone(), new.clone())),
                    None if is_same => drop(values.remove(name)),
                    _ => {}
                }
                Reply::Swapped(is_same)
            }
        }
    }
}

/// The call for which a process waits.
type Waiting = Arc<Mutex<Option<(Call, oneshot::Sender<Reply>)>>>;

struct Stepped(Waiting);

impl Stepped {
    async fn call(&self, call: Call) -> Result<Reply, LimiterError> {
        let (sender, answer) = oneshot::channel();
        *self.0.lock().unwrap() = Some((call, sender));
        match answer.await {
            Ok(Reply::Lost) => Err(LimiterError::new("no answer")),
            Ok(answer) => Ok(answer),
            Err(_) => pending().await,
        }
    }
}

impl Records for Stepped {
    async fn read(&self, name: &str, _: CallLimits) -> Result<Record, LimiterError> {
        let Reply::Value(value) = self.call(Call::Read(name.into())).await? else { unreachable!("a read") };
        Ok(Record { value, now: NOW })
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        _: Duration,
        _: CallLimits,
    ) -> Result<bool, LimiterError> {
        let [old, new] = [old, new].map(|value| value.map(<[u8]>::to_vec));
        let swap = Call::Swap { name: name.into(), old, new };
        let Reply::Swapped(is_swapped) = self.call(swap).await? else { unreachable!("a swap") };
        Ok(is_swapped)
    }
}

impl Server for Stepped {
    fn timeout(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    fn is_same_as(&self, _: &Self) -> bool {
        true
    }
}

/// A process that does a step, and repeats it if no answer comes.
struct Process {
    waiting: Waiting,
    task: JoinHandle<AccountReply>,
    answers: Vec<Reply>,
    is_killed: bool,
}

impl Process {
    fn start(make: fn(&LimiterKeys) -> AccountStep) -> Self {
        let waiting = Waiting::default();
        let stepped = Stepped(Arc::clone(&waiting));
        let task = tokio::spawn(async move {
            let keys = LimiterKeys::new(&[], "bought");
            let tag = keys.tag(&PartitionKey::from("alice"));
            loop {
                let limits = CallLimits::until(Instant::now() + Duration::from_secs(360_000));
                if let Ok(reply) = stepped.apply(&keys.key(tag), make(&keys), limits).await {
                    return reply;
                }
            }
        });
        Self { waiting, task, answers: Vec::new(), is_killed: false }
    }

    fn has_call(&self) -> bool {
        !self.is_killed && self.waiting.lock().unwrap().is_some()
    }

    /// Returns when it waits for an answer, or has ended.
    async fn settled(&self) {
        for turn in 0.. {
            if self.is_killed || self.task.is_finished() || self.has_call() {
                return;
            }
            // Time is paused, so a pause between two attempts takes no time.
            if turn < 8 { yield_now().await } else { sleep(Duration::from_millis(1)).await }
        }
    }
}

const UNITS: u64 = 3;

fn credit(keys: &LimiterKeys) -> AccountStep {
    let reference = Some(keys.credited("invoice-17"));
    AccountStep::Credit { units: UNITS, expiry: CreditExpiry::Never, reference }
}

/// Empties the account, so that only the units from before the credit are left.
fn take(_: &LimiterKeys) -> AccountStep {
    AccountStep::Take { units: UNITS, shortfall: Shortfall::Rejected, reference: None }
}

/// The search's next move.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// This process's call is done, and answered.
    Answer(usize),
    /// The call is done, and the process is killed before it gets the answer.
    Kill(usize),
    /// The process gets no answer. The call is still in flight.
    Lose(usize),
    /// A call arrives whose process waits no longer.
    Deliver(usize),
}

/// The processes in a run. The last one begins when the others have ended, and repeats the credit.
struct Plan {
    at_once: &'static [fn(&LimiterKeys) -> AccountStep],
    kills: usize,
    losses: usize,
}

/// A run's choices, each with the number of choices that there were.
type Path = Vec<(usize, usize)>;

struct Search {
    plan: Plan,
    seen: HashSet<String>,
    ends: usize,
}

impl Search {
    /// Makes a run that begins with these choices, and then takes the first choice each time, until a state was seen
    /// before.
    async fn run(&mut self, path: &mut Path) {
        let mut values = first_values();
        let mut on_their_way: Vec<Call> = Vec::new();
        let mut processes: Vec<_> = self.plan.at_once.iter().map(|make| Process::start(*make)).collect();
        let [mut kills, mut losses] = [self.plan.kills, self.plan.losses];
        for depth in 0.. {
            for process in &processes {
                process.settled().await;
            }
            if processes.len() == self.plan.at_once.len() && !processes.iter().any(Process::has_call) {
                processes.push(Process::start(credit));
                processes[self.plan.at_once.len()].settled().await;
            }
            let mut choices = Vec::new();
            for (index, process) in processes.iter().enumerate().filter(|(_, process)| process.has_call()) {
                choices.push(Choice::Answer(index));
                let is_last = index == self.plan.at_once.len();
                let is_swap = matches!(&*process.waiting.lock().unwrap(), Some((Call::Swap { .. }, _)));
                choices.extend((kills > 0 && !is_last).then_some(Choice::Kill(index)));
                choices.extend((losses > 0 && !is_last && is_swap).then_some(Choice::Lose(index)));
            }
            choices.extend((0..on_their_way.len()).map(Choice::Deliver));
            if choices.is_empty() {
                return self.end(&values, processes).await;
            }
            if depth == path.len() {
                let waits: Vec<_> = processes
                    .iter()
                    .map(|process| {
                        (
                            process.waiting.lock().unwrap().as_ref().map(|(call, _)| call.clone()),
                            &process.answers,
                            process.is_killed,
                        )
                    })
                    .collect();
                if !self.seen.insert(format!("{values:?} {on_their_way:?} {waits:?} {kills} {losses}")) {
                    return;
                }
                path.push((0, choices.len()));
            }
            assert_eq!(path[depth].1, choices.len(), "a run is repeatable");
            let choice = choices[path[depth].0];
            match choice {
                Choice::Deliver(index) => drop(on_their_way.swap_remove(index).apply(&mut values)),
                Choice::Answer(index) | Choice::Kill(index) | Choice::Lose(index) => {
                    let process = &mut processes[index];
                    let (call, sender) = process.waiting.lock().unwrap().take().expect("it has a call");
                    let reply = match choice {
                        Choice::Lose(_) => {
                            losses -= 1;
                            on_their_way.push(call);
                            Reply::Lost
                        }
                        _ => call.apply(&mut values),
                    };
                    if matches!(choice, Choice::Kill(_)) {
                        kills -= 1;
                        process.is_killed = true;
                        process.task.abort();
                    } else {
                        process.answers.push(reply.clone());
                        let _ = sender.send(reply);
                    }
                }
            }
        }
    }

    /// Checks the answers that the processes got, and the server's values in the end.
    async fn end(&mut self, values: &Values, processes: Vec<Process>) {
        self.ends += 1;
        let (mut taken, mut entered, mut unheard) = (0, 0, 0);
        for process in processes {
            unheard += usize::from(process.is_killed || process.answers.iter().any(|it| matches!(it, Reply::Lost)));
            if process.is_killed {
                continue;
            }
            let reply = process.task.await.unwrap();
            taken += reply.taken;
            entered += usize::from(reply.done == AccountDone::Step && reply.taken == 0);
        }
        assert!(entered <= 1, "{entered} processes have entered one reference");
        assert!(entered + unheard >= 1, "nobody has entered it");
        let mut left = 0;
        for (name, value) in values.iter().filter(|(name, _)| name.ends_with(":l")) {
            let record = AccountRecord::read(Some(value), NOW).expect(name);
            left += record.left();
        }
        // A process that was killed may have taken the units.
        let taken_unheard = u64::from(unheard > 0 && left + taken == 0) * UNITS;
        assert_eq!(left + taken + taken_unheard, UNITS, "the units were entered once");
    }
}

/// An account that had units before, and has none.
fn first_values() -> Values {
    let mut record = AccountRecord::read(None, NOW).expect("an empty one");
    let keys = LimiterKeys::new(&[], "bought");
    let name = keys.key(keys.tag(&PartitionKey::from("alice"))).record('l');
    BTreeMap::from([(name, record.next(NOW).0)])
}

/// Tries all choices. Returns the number of states, and how many are ends.
async fn search(plan: Plan) -> (usize, usize) {
    let mut search = Search { plan, seen: HashSet::new(), ends: 0 };
    let mut path = Path::new();
    loop {
        search.run(&mut path).await;
        while path.last().is_some_and(|(choice, count)| choice + 1 == *count) {
            path.pop();
        }
        let Some((choice, _)) = path.last_mut() else { return (search.seen.len(), search.ends) };
        *choice += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn killed_processes_enter_a_reference_once() {
    let (states, ends) = search(Plan { at_once: &[credit, credit], kills: 2, losses: 0 }).await;
    assert!(states > 500 && ends > 100, "{states} states, {ends} ends");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_enter_a_reference_once() {
    let (states, ends) = search(Plan { at_once: &[credit, credit], kills: 0, losses: 1 }).await;
    assert!(states > 500 && ends > 100, "{states} states, {ends} ends");
}

#[tokio::test(start_paused = true)]
async fn an_account_emptied_meanwhile_enters_it_once() {
    let (states, ends) = search(Plan { at_once: &[credit, credit, take], kills: 1, losses: 0 }).await;
    assert!(states > 500 && ends > 100, "{states} states, {ends} ends");
}
