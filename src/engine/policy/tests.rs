//! Tests for a policy's calls to its limiter, for the policies' order, and for the mistakes that a layer rejects when
//! it is built.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};

use crate::algorithm::TokenBucket;
use crate::engine::policy::bans::Penalty;
use crate::engine::policy::definition::{ChargeOrder, Policy};
use crate::engine::policy::error::PolicyError;
use crate::engine::policy::names::MAX_NAME;
use crate::engine::policy::selector::MissingKey;
use crate::http::head::RequestHead;
use crate::http::key::HeaderKey;
use crate::limiter::Limiter;
use crate::values::{Answer, Ask, Decision, Description, Mode, Quota, Receipt};

/// A limiter that records each call's mode and cost, and admits costs up to `left`.
struct Recording {
    description: Description,
    left: u64,
    asked: Arc<Mutex<Vec<(Mode, u64)>>>,
}

impl Limiter for Recording {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.asked.lock().unwrap().push((ask.mode(), ask.cost()));
        if ask.cost() <= self.left {
            Decision::allow(9, self.left - ask.cost()).with_receipt(Receipt::new(1)).into()
        } else {
            Decision::reject(9, self.left, None).into()
        }
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }
}

type Asked = Arc<Mutex<Vec<(Mode, u64)>>>;

fn recording(description: Description, left: u64) -> (Policy, Asked) {
    let asked = Asked::default();
    let limiter = Recording { description, left, asked: Arc::clone(&asked) };
    (Policy::new("recording", Arc::new(limiter)), asked)
}

fn taken(asked: &Asked) -> Vec<(Mode, u64)> {
    std::mem::take(&mut asked.lock().unwrap())
}

fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_second(1).burst(burst))
}

#[test]
fn limiters_are_asked_in_answered_modes() {
    let (policy, asked) = recording(Description::new(), 9);
    let key = "a".into();
    let ask = Ask::charge(&key, 2);
    assert_eq!(policy.peek(&ask), None);
    assert!(policy.fall_back(&ask).is_none());
    assert_eq!(taken(&asked), []);
    assert!(policy.charge_as_shadow(&ask).at_once().is_some());
    assert_eq!(taken(&asked), [(Mode::Charge, 2)]);

    let all = [Mode::Peek, Mode::Shadow, Mode::UpTo, Mode::Fallback];
    let (policy, asked) = recording(all.into_iter().fold(Description::new(), Description::answering), 1);
    assert!(policy.peek(&ask).is_some_and(|decision| !decision.is_allowed()));
    let _ = policy.charge_as_shadow(&ask);
    let _ = policy.fall_back(&ask);
    policy.charge_up_to(&ask);
    assert_eq!(taken(&asked), [Mode::Peek, Mode::Shadow, Mode::Fallback, Mode::UpTo].map(|mode| (mode, 2)));
}

/// The limiter cannot charge them in one step.
#[test]
fn remaining_units_take_a_second_step() {
    let (policy, asked) = recording(Description::new(), 3);
    let key = "a".into();
    policy.charge_up_to(&Ask::charge(&key, 5));
    assert_eq!(taken(&asked), [(Mode::Charge, 5), (Mode::Charge, 3)]);
    policy.charge_up_to(&Ask::charge(&key, 3));
    assert_eq!(taken(&asked), [(Mode::Charge, 3)], "all three were charged");
    let (policy, asked) = recording(Description::new(), 0);
    policy.charge_up_to(&Ask::charge(&key, 5));
    assert_eq!(taken(&asked), [(Mode::Charge, 5)], "nothing is left");
    let (policy, asked) = recording(Description::new().answering(Mode::Fallback), 3);
    policy.fall_back_up_to(&Ask::charge(&key, 5));
    assert_eq!(taken(&asked), [(Mode::Fallback, 5), (Mode::Fallback, 3)]);
}

#[test]
fn cheaply_undone_policies_are_asked_first() {
    let memory = Policy::new("memory", bucket(1));
    let (cannot_peek, _) = recording(Description::new(), 1);
    let (queue, _) = recording(Description::new().answering(Mode::Peek).delaying(), 1);
    let shadow = Policy::new("shadow", bucket(1)).shadow();
    assert_eq!(
        [&memory, &cannot_peek, &queue, &shadow].map(Policy::charge_order),
        [ChargeOrder::AtOnce, ChargeOrder::NotAtOnce, ChargeOrder::Delaying, ChargeOrder::Shadow]
    );
    assert!([&memory, &cannot_peek, &queue, &shadow].is_sorted_by_key(|policy| policy.charge_order()));
    assert_eq!(queue.shadow().charge_order(), ChargeOrder::Shadow);
}

#[test]
fn plain_policies_depend_on_limiters_alone() {
    assert!(keyed().is_plain());
    assert!(keyed().when(|_| true).cost(1).is_plain());
    assert!(!keyed().shadow().is_plain());
    assert!(!keyed().charge_when(|_| true).is_plain());
    assert!(!keyed().penalty(penalty()).is_plain());
    assert!(!keyed().warn_at(0.5).is_plain());
}

#[test]
fn held_requests_outlast_their_decision() {
    let held = || recording(Description::new().holding(), 1).0;
    assert!(held().is_plainly_held() && held().is_open_ended() && !held().is_plain());
    for policy in [held().release_at_head(), held().shadow(), held().warn_at(0.5)] {
        assert!(!policy.is_plainly_held() && policy.is_open_ended());
    }
    assert!(!keyed().is_plainly_held() && !keyed().is_open_ended());
    assert!(!keyed().penalty(penalty()).is_open_ended() && keyed().charge_when(|_| true).is_open_ended());
}

#[test]
fn the_response_sets_the_final_cost() {
    let response = |status: u16| Response::builder().status(status).body(()).unwrap();
    let cost = |policy: &Policy, status| policy.billing.cost_by_head(4, &(&response(status)).into());
    let fixed = Policy::new("fixed", bucket(9));
    assert_eq!([cost(&fixed, 200), cost(&fixed, 401)], [None, None]);
    let failed = Policy::new("failed", bucket(9)).charge_when(|response| response.status() == 401);
    assert_eq!([cost(&failed, 200), cost(&failed, 401)], [Some(0), Some(4)]);
    let after = Policy::new("after", bucket(9)).cost_after(|response| u64::from(response.status().as_u16()));
    assert_eq!([cost(&after, 200), cost(&after, 401)], [Some(200), Some(401)]);
    for at_the_end in
        [Policy::new("end", bucket(9)).settle_by_handler(), Policy::new("end", bucket(9)).settle_by_content_bytes()]
    {
        assert!(at_the_end.billing.settles_later() && cost(&at_the_end, 200).is_none());
    }
    assert!(failed.billing.is_all_or_nothing() && !after.billing.is_all_or_nothing() && !fixed.billing.settles_later());
}

#[test]
fn a_policy_applies_under_its_condition() {
    let request = Request::new(());
    let head = RequestHead::from(&request);
    assert!(Policy::new("always", bucket(1)).applies_to(&head));
    assert!(!Policy::new("never", bucket(1)).when(|_| false).applies_to(&head));
}

/// Others are answered 429.
#[test]
fn shared_budgets_are_answered_503() {
    let policy = Policy::new("p", bucket(1));
    assert_eq!(
        [policy.rejection_status(false), policy.rejection_status(true)].map(|status| status.as_u16()),
        [429, 503]
    );
    let teapot = policy.status(StatusCode::IM_A_TEAPOT);
    assert_eq!([teapot.rejection_status(false), teapot.rejection_status(true)], [StatusCode::IM_A_TEAPOT; 2]);
}

/// A valid policy with a burst of five.
fn valid(name: &str) -> Policy {
    Policy::new(name.to_owned(), bucket(5))
}

fn keyed() -> Policy {
    valid("p").key(HeaderKey::from_static("x-key"))
}

fn penalty() -> Penalty {
    Penalty::new(Quota::per_minute(1), Duration::from_secs(1))
}

#[test]
fn names_are_tokens_within_64_bytes() {
    let longest = "n".repeat(MAX_NAME);
    for name in ["p", "*", "per-client", "a.b:c/d~e", &longest] {
        assert_eq!(valid(name).validate(), Ok(()), "{name}");
    }
    let too_long = format!("{longest}n");
    for name in ["", "1st", "two words", "ümlaut", "quote\"", &too_long] {
        assert_eq!(valid(name).validate(), Err(PolicyError::InvalidName { name: name.to_owned() }));
    }
}

#[test]
fn constant_costs_are_within_the_burst() {
    let name = || "p".to_owned();
    assert_eq!(valid("p").cost(0).validate(), Err(PolicyError::CostOfZero { name: name() }));
    assert_eq!(valid("p").cost(5).validate(), Ok(()));
    assert_eq!(valid("p").cost(6).validate(), Err(PolicyError::CostAboveBurst { name: name(), cost: 6, burst: 5 }));
    assert_eq!(valid("p").cost_fn(|_| 0).validate(), Ok(()), "not known in advance");
}

#[test]
fn a_penalty_needs_individual_keys() {
    assert_eq!(keyed().penalty(penalty()).validate(), Ok(()));
    for shared in [valid("p"), keyed().on_missing_key(MissingKey::Share)] {
        let error = shared.penalty(penalty()).validate().unwrap_err();
        assert!(matches!(error, PolicyError::Conflict { option: "penalty", .. }), "{error}");
    }
}

#[test]
fn rejections_have_an_error_status() {
    assert_eq!(valid("p").status(StatusCode::BAD_GATEWAY).validate(), Ok(()));
    let error = PolicyError::InvalidStatus { name: "p".to_owned(), status: 302 };
    assert_eq!(valid("p").status(StatusCode::FOUND).validate(), Err(error));
}
