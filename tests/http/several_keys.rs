//! `KeyExtractor::extract_all`: requests with several keys in one policy, against a naive ledger.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::FixedWindow;
use tower_sluice::key::{HeaderKey, KeyCharge, KeyError, KeyExtractor, Mark, Marks};
use tower_sluice::limiter::{Answer, Ask, Description, IntoLimiter, Mode};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{
    Limiter, LimiterError, MissingKey, PartitionKey, Penalty, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead,
    Verdict,
};

use crate::support::cases::cases;

/// A message's recipients.
#[derive(Clone)]
struct Recipients(Vec<KeyCharge>);

/// A key for each recipient.
struct ByRecipient;

impl KeyExtractor for ByRecipient {
    fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        unreachable!("requests have several keys")
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, head: &RequestHead<'_>) -> Result<Vec<KeyCharge>, KeyError> {
        let recipients = head.extensions().get::<Recipients>().map(|recipients| recipients.0.clone());
        recipients.ok_or(KeyError::Missing { what: "the list of recipients".into() })
    }
}

/// One recipient in a test: its number, the cost, and whether the request only peeks.
type Charge = (u8, u64, bool);

fn key(recipient: u8) -> PartitionKey {
    PartitionKey::from(format!("r{recipient}"))
}

fn request(charges: &[Charge]) -> Request<()> {
    let to_charge = |&(recipient, cost, is_peek): &Charge| {
        let charge = KeyCharge::new(key(recipient)).cost(cost);
        if is_peek { charge.peek() } else { charge }
    };
    let mut request = Request::new(());
    request.extensions_mut().insert(Recipients(charges.iter().map(to_charge).collect()));
    request.headers_mut().insert("sender", "ada".parse().unwrap());
    request
}

fn send(layer: &RateLimitLayer, request: Request<()>) -> (Response<()>, Verdict) {
    let answer = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let response = layer.layer(answer).oneshot(request).now_or_never().unwrap().unwrap().map(drop);
    let verdict = response.extensions().get::<Verdict>().cloned().unwrap();
    (response, verdict)
}

const START: u64 = 1_699_999_980;

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(START * 1_000_000_000))
}

fn window(name: &str, limit: u64, clock: &ManualClock) -> Policy {
    let store = MemoryStore::with_capacity(64).with_clock(clock.clone());
    Policy::new(name, RateLimiter::new(FixedWindow::new(Quota::per_minute(limit)), store))
}

/// A message to several recipients, each of whom gets `limit` per minute, from a sender who may send `sent` in all.
struct Ledger {
    limit: u64,
    sent: u64,
    received: HashMap<u8, u64>,
}

impl Ledger {
    /// Returns whether a message is sent.
    fn send(&mut self, charges: &[Charge]) -> bool {
        let mut after = self.received.clone();
        let mut has_room = self.sent > 0;
        for &(recipient, cost, is_peek) in charges {
            let received = after.entry(recipient).or_insert(0);
            has_room &= *received + cost <= self.limit;
            *received += if is_peek { 0 } else { cost };
        }
        if has_room {
            self.received = after;
            self.sent -= 1;
        }
        has_room
    }
}

fn compare(limit: u64, steps: Vec<Option<Vec<Charge>>>) {
    let clock = clock();
    // The sender's policy is charged first if it is declared first.
    let recipients = window("recipients", limit, &clock).key(ByRecipient);
    let sender = window("sender", 12, &clock).key(HeaderKey::from_static("sender"));
    let layer = RateLimitLayer::builder([sender, recipients]).verdict().build();
    let handle = layer.handle();
    let mut ledger = Ledger { limit, sent: 12, received: HashMap::new() };
    for step in steps {
        let Some(charges) = step else {
            clock.advance(Duration::from_secs(60));
            ledger = Ledger { limit, sent: 12, received: HashMap::new() };
            continue;
        };
        let (_, verdict) = send(&layer, request(&charges));
        assert_eq!(verdict.is_allowed(), ledger.send(&charges), "{charges:?}: {verdict:?}");
        let left = |policy: &str, key: &PartitionKey| {
            handle.peek(policy, key).now_or_never().unwrap().unwrap().decision().remaining()
        };
        assert_eq!(left("sender", &PartitionKey::from("ada")), ledger.sent, "after {charges:?}");
        for recipient in 0..4 {
            let received = ledger.received.get(&recipient).copied().unwrap_or(0);
            assert_eq!(left("recipients", &key(recipient)), limit - received, "r{recipient} after {charges:?}");
        }
        if verdict.is_allowed() {
            let decided = verdict.policies().iter().filter(|policy| policy.name() == "recipients");
            for (policy, (recipient, ..)) in decided.zip(&charges) {
                assert_eq!(policy.key(), Some(&key(*recipient)));
            }
        }
    }
}

fn step() -> impl Strategy<Value = Option<Vec<Charge>>> {
    let charge = (0..4_u8, 1..4_u64, prop::bool::weighted(0.2));
    prop_oneof![8 => prop::collection::vec(charge, 0..4).prop_map(Some), 1 => Just(None)]
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn random_messages_charge_all_or_none(
        limit in 1..8_u64, steps in prop::collection::vec(step(), 1..60),
    ) {
        compare(limit, steps);
    }
}

/// The rejection's wait is true.
#[test]
fn a_rejecting_peek_charges_nothing() {
    let clock = clock();
    let layer = RateLimitLayer::builder(window("recipients", 1, &clock).key(ByRecipient)).verdict().build();
    assert!(send(&layer, request(&[(1, 1, true), (2, 1, false)])).1.is_allowed());
    let (response, verdict) = send(&layer, request(&[(1, 1, false), (2, 1, true)]));
    assert!(!verdict.is_allowed());
    assert_eq!(response.headers()["retry-after"], "60");
    let decided: Vec<_> = verdict.policies().iter().map(|policy| policy.decision()).collect();
    assert_eq!(decided.iter().map(|decision| decision.remaining()).collect::<Vec<_>>(), [1, 0]);
    assert!(send(&layer, request(&[(1, 1, false)])).1.is_allowed());
}

/// A request for one recipient, whose message was sent already.
fn report(cost: u64) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Recipients(vec![KeyCharge::new(key(1)).cost(cost).up_to()]));
    request
}

/// The charge takes the remaining units, and the request is admitted.
#[test]
fn a_spent_cost_takes_the_rest() {
    let clock = clock();
    let penalty = Penalty::new(Quota::per_minute(9), Duration::from_secs(3_600));
    let policy = window("recipients", 10, &clock).key(ByRecipient).penalty(penalty);
    let layer = RateLimitLayer::builder(policy).verdict().build();
    let left = |cost| {
        let (_, verdict) = send(&layer, report(cost));
        assert!(verdict.is_allowed(), "{verdict:?}");
        verdict.policies()[0].decision().remaining()
    };
    assert_eq!([left(4), left(5), left(7), left(7)], [6, 1, 0, 0]);
    assert!(!send(&layer, request(&[(1, 1, true)])).1.is_allowed());
    clock.advance(Duration::from_secs(60));
    // More than the limit, at once.
    assert_eq!(left(11), 0);
    assert!(!send(&layer, request(&[(1, 1, true)])).1.is_allowed());
    let _ = layer.handle().ban("recipients", &key(1), Duration::from_secs(9_000), "a test").now_or_never().unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(left(4), 6);
    // Another key without room does not take it back.
    let mut both = report(1);
    let full = [KeyCharge::new(key(1)).cost(1).up_to(), KeyCharge::new(key(2)).cost(11)];
    both.extensions_mut().insert(Recipients(full.to_vec()));
    let (_, verdict) = send(&layer, both);
    let violated: Vec<_> = verdict.violated().map(|policy| policy.key().cloned().unwrap()).collect();
    assert_eq!(violated, [key(2)], "it rejects nothing");
}

#[test]
fn a_look_charges_no_shadow() {
    let clock = clock();
    let layer = RateLimitLayer::builder(window("recipients", 1, &clock).key(ByRecipient).shadow()).verdict().build();
    for _ in 0..3 {
        let (_, verdict) = send(&layer, request(&[(1, 1, true)]));
        assert!(verdict.policies()[0].decision().is_allowed());
    }
    assert!(send(&layer, request(&[(1, 1, false)])).1.policies()[0].decision().is_allowed());
    assert!(!send(&layer, request(&[(1, 1, true)])).1.policies()[0].decision().is_allowed());
}

/// A request that carries no list at all lacks its key.
#[test]
fn a_request_without_keys_is_unlimited() {
    let clock = clock();
    let of = |choice| {
        let policy = window("recipients", 1, &clock).key(ByRecipient).on_missing_key(choice);
        RateLimitLayer::builder(policy).verdict().build()
    };
    let layer = of(MissingKey::Reject);
    assert!(send(&layer, request(&[])).1.policies().is_empty());
    let (response, _) = send(&layer, Request::new(()));
    assert_eq!(response.status(), 400);
    let shared = of(MissingKey::Share);
    assert!(send(&shared, Request::new(())).1.is_allowed());
    assert!(!send(&shared, Request::new(())).1.is_allowed());
    assert!(send(&of(MissingKey::Skip), Request::new(())).1.policies().is_empty());
}

#[test]
fn a_key_may_have_its_own_quota() {
    let clock = clock();
    let sent = |quota: Option<u64>| {
        let mut request = Request::new(());
        let charge = KeyCharge::new(key(1)).cost(1);
        let charge = match quota {
            Some(limit) => charge.quota(Quota::per_minute(limit)),
            None => charge,
        };
        request.extensions_mut().insert(Recipients(vec![charge]));
        request
    };
    let own = window("recipients", 1, &clock).key(ByRecipient).quota_fn(|_| None);
    let layer = RateLimitLayer::builder(own).verdict().build();
    let limits = [Some(3), Some(3), None, Some(3), Some(3)];
    let admitted = limits.map(|limit| send(&layer, sent(limit)).1.is_allowed());
    assert_eq!(admitted, [true, true, false, true, false]);
    // Without the option, the key's quota has no effect.
    let layer = RateLimitLayer::builder(window("recipients", 1, &clock).key(ByRecipient)).verdict().build();
    assert_eq!([Some(3); 2].map(|limit| send(&layer, sent(limit)).1.is_allowed()), [true, false]);
}

/// If an operator bans one key, the request is rejected. Keys that an operator allows are not charged.
#[test]
fn operator_overrides_apply_to_each_key() {
    let clock = clock();
    let layer = RateLimitLayer::builder(window("recipients", 1, &clock).key(ByRecipient)).verdict().build();
    let handle = layer.handle();
    let span = Duration::from_secs(3_600);
    let _ = handle.ban("recipients", &key(1), span, "a test").now_or_never().unwrap().unwrap();
    let _ = handle.allow("recipients", &key(2), span, "a test").now_or_never().unwrap().unwrap();
    assert!(!send(&layer, request(&[(0, 1, false), (1, 1, false)])).1.is_allowed());
    assert!(!send(&layer, request(&[(1, 1, true)])).1.is_allowed());
    for _ in 0..3 {
        assert!(send(&layer, request(&[(2, 1, false)])).1.is_allowed());
    }
    assert!(send(&layer, request(&[(0, 1, false), (2, 1, false)])).1.is_allowed());
    assert!(!send(&layer, request(&[(0, 1, false), (2, 1, false)])).1.is_allowed());
}

/// A limiter that fails, with a local fallback that has one unit per key.
struct Failing(Arc<dyn Limiter>);

impl Limiter for Failing {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Fallback => self.0.decide(&ask.to(Mode::Charge)),
            _ => Answer::Ready(Err(LimiterError::new("the store is away"))),
        }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek).answering(Mode::Fallback)
    }
}

#[test]
fn a_look_does_not_charge_the_fallback() {
    let window = FixedWindow::new(Quota::per_minute(1));
    let store = MemoryStore::with_capacity(64).with_clock(clock());
    let failing: Arc<dyn Limiter> = Arc::new(Failing(RateLimiter::new(window, store).into_limiter()));
    let policy = Policy::new("recipients", failing);
    let layer = RateLimitLayer::builder(policy.key(ByRecipient)).verdict().build();
    for _ in 0..3 {
        assert!(send(&layer, request(&[(1, 1, true)])).1.is_allowed());
    }
    let admitted = [1, 2].map(|_| send(&layer, request(&[(1, 1, false)])).1.is_allowed());
    assert_eq!(admitted, [true, false]);
}

#[test]
fn a_spent_cost_takes_the_fallbacks_rest() {
    let window = FixedWindow::new(Quota::per_minute(5));
    let store = MemoryStore::with_capacity(64).with_clock(clock());
    let failing: Arc<dyn Limiter> = Arc::new(Failing(RateLimiter::new(window, store).into_limiter()));
    let policy = Policy::new("recipients", failing);
    let layer = RateLimitLayer::builder(policy.key(ByRecipient)).verdict().build();
    assert!(send(&layer, report(9)).1.is_allowed());
    assert!(!send(&layer, request(&[(1, 1, false)])).1.is_allowed());
}

#[test]
fn several_keys_cannot_be_an_alternative() {
    let clock = clock();
    let first = window("recipients", 1, &clock).key(ByRecipient);
    let error = RateLimitLayer::try_new(first.or_else(window("other", 1, &clock))).unwrap_err().to_string();
    assert!(error.contains("layer of its own"), "{error}");
}

/// A tenant's key, which counts how often it is asked.
struct OfTenant {
    tenant: usize,
    asked: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Tenant(usize);

impl KeyExtractor for OfTenant {
    fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        unreachable!("requests have several keys")
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, head: &RequestHead<'_>) -> Result<Vec<KeyCharge>, KeyError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let Tenant(tenant) = head.extensions().get().unwrap();
        Ok(if *tenant == self.tenant { vec![KeyCharge::new(key(1))] } else { Vec::new() })
    }

    fn marks(&self) -> Vec<Mark> {
        vec![Mark::of("tenants"), Mark::of(&self.tenant)]
    }
}

/// A request used to ask each of a thousand policies.
#[test]
fn a_request_with_marks_asks_few_policies() {
    let clock = clock();
    let asked = Arc::new(AtomicUsize::new(0));
    let of_tenant = |tenant: usize| {
        let key = OfTenant { tenant, asked: Arc::clone(&asked) };
        window(&format!("t{tenant}"), 1, &clock).key(key)
    };
    let mut policies: Vec<_> = (0..1_000).map(of_tenant).collect();
    policies.push(window("all", 3, &clock));
    let layer = RateLimitLayer::builder(policies).verdict().build();
    let request = |tenant, is_marked| {
        let mut request = Request::new(());
        request.extensions_mut().insert(Tenant(tenant));
        if is_marked {
            request.extensions_mut().insert(Marks::from_iter([Mark::of("tenants"), Mark::of(&tenant)]));
        }
        request
    };
    let names = |verdict: &Verdict| verdict.policies().iter().map(|it| it.name().to_owned()).collect::<Vec<_>>();
    let (response, verdict) = send(&layer, request(7, true));
    assert_eq!((response.status().as_u16(), names(&verdict)), (200, vec!["t7".to_owned(), "all".to_owned()]));
    assert_eq!(send(&layer, request(7, true)).0.status(), 429);
    assert_eq!(send(&layer, request(8, true)).0.status(), 200);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    // Without marks, the layer asks all policies and decides alike.
    assert_eq!(send(&layer, request(7, false)).0.status(), 429);
    assert_eq!(asked.load(Ordering::Relaxed), 1_003);
    // A live change finds its own policies.
    layer.handle().replace(of_tenant(9)).unwrap();
    assert_eq!(names(&send(&layer, request(9, true)).1), ["t9"]);
    assert_eq!(names(&send(&layer, request(7, true)).1), [""; 0]);
}
