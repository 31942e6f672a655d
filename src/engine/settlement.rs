//! [`Settlement`]: lets a handler report a request's real cost.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::engine::settled_names;

/// Reports a request's real cost, for policies that are [settled by the handler](crate::Policy::settle_by_handler),
/// such as the tokens of a language model, the rows of a query, or the seconds of a job. In the extensions of each
/// request that such a policy has charged.
///
/// The request is charged its [cost](crate::Policy::cost), an estimate, when it comes. The handler reports the real
/// cost at any time until the response's body has ended. At the end, an excess is refunded, and a shortfall is charged
/// as far as units are left. Without a report, the estimate stays.
///
/// - **A stream** reports each chunk before it yields it, by [`add`](Self::add) or a [`Meter`]. A client may disconnect
///   at any time, and then the stream is dropped half-way, so a report at its end would never come.
/// - **A total** that is known at once is reported by [`settle`](Self::settle). If you call it several times, the last
///   report counts.
/// - **Without a name**, [`settle_all`](Self::settle_all), [`add_all`](Self::add_all) and
///   [`meter_all`](Self::meter_all) report to each policy that has charged the request. So a handler need not know
///   which [alternative](crate::Policy::or_else) that is, and a request that no policy has charged is not an error. Use
///   names where policies count different things, such as tokens and rows.
///
/// If a report has a name that no policy in the process has, that is a mistake in the program. It is
/// [logged](crate::guide::misconfigured#a-handler-reports-a-cost-that-no-policy-awaits), at the first report and at the
/// hundredth.
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use axum::{Router, routing::post};
/// use tower_sluice::algorithm::FixedWindow;
/// use tower_sluice::{Policy, Quota, RateLimitLayer, Settlement};
///
/// async fn complete(settlement: Settlement, prompt: String) -> String {
///     let answer = prompt.to_uppercase();
///     let tokens = 17;
///     settlement.settle_all(tokens);
///     answer
/// }
///
/// let tokens = Policy::new("tokens", FixedWindow::new(Quota::per_minute(100_000))).cost(500).settle_by_handler();
/// let app: Router = Router::new().route("/complete", post(complete)).layer(RateLimitLayer::new(tokens));
/// ```
///
/// Policies of the same name, in layers around each other, get the same reports. Clones report to the same request.
/// A handler of axum takes it as an argument with the crate feature `axum`; without the feature, axum says that the
/// handler lacks the trait `Handler`. Without axum, take it from the extensions:
/// `request.extensions().get::<Settlement>()`; tonic passes them on.
#[derive(Clone)]
#[doc(alias("llm", "tokens", "streaming"))]
pub struct Settlement {
    reports: Arc<Reports>,
    /// The outer layer's settlement, whose policies can be settled, too.
    outer: Option<Arc<Self>>,
}

/// One request's reports, for each policy that awaits one.
pub(crate) struct Reports(SmallVec<[Report; 1]>);

struct Report {
    policy: Arc<str>,
    /// [`NONE`], [`ENDED`], or a cost.
    cost: AtomicU64,
}

/// Nothing was reported yet.
const NONE: u64 = u64::MAX;

/// The body has ended, and the cost that was reported by then is charged.
const ENDED: u64 = u64::MAX - 1;

/// The reason why a cost could not be reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettleError {
    /// No policy with this name awaits a report on the request. This is also the case if the policy has let the request
    /// pass uncharged, because it is exempt, a shadow would have rejected it, or the limiter could not decide.
    #[non_exhaustive]
    UnknownPolicy {
        /// The name.
        policy: String,
        /// The policies that await one.
        known: Vec<String>,
    },
    /// The response's body has ended, so the charge is final.
    Ended,
}

impl Settlement {
    /// Reports to one layer, and to the layers around it.
    pub(crate) fn new(reports: Arc<Reports>, outer: Option<Self>) -> Self {
        Self { reports, outer: outer.map(Arc::new) }
    }

    /// Reports the request's total `cost` for this policy, in its quota's units. Replaces an earlier report.
    ///
    /// # Errors
    ///
    /// If no policy with this name awaits a report, or if the response's body has ended.
    pub fn settle(&self, policy: &str, cost: u64) -> Result<(), SettleError> {
        self.report(policy, |_| cost)
    }

    /// Adds `units` to the request's reported cost for this policy, in its quota's units. The first report counts from
    /// zero, and not from the estimate.
    ///
    /// Report a chunk before you send it, so that the final charge covers all sent chunks, even if the client
    /// disconnects.
    ///
    /// # Errors
    ///
    /// If no policy with this name awaits a report, or if the response's body has ended.
    pub fn add(&self, policy: &str, units: u64) -> Result<(), SettleError> {
        self.report(policy, |before| before.saturating_add(units))
    }

    /// Reports the request's total `cost` to each policy that has charged it and is [settled by the
    /// handler](crate::Policy::settle_by_handler), in their quotas' units. Replaces earlier reports. Returns how many
    /// policies got it: 0 if no policy has charged the request, for example because it is exempt, or if the response's
    /// body has ended.
    pub fn settle_all(&self, cost: u64) -> usize {
        self.report_to_all(|_| cost)
    }

    /// Adds `units` to the request's reported cost, for each policy that has charged it and is settled by the handler:
    /// see [`add`](Self::add). Returns how many policies got it, as [`settle_all`](Self::settle_all) does.
    pub fn add_all(&self, units: u64) -> usize {
        self.report_to_all(|before| before.saturating_add(units))
    }

    /// Returns a meter that counts the request's cost from now on, for each policy that has charged it and is settled
    /// by the handler. It starts at zero, like [`meter`](Self::meter). For a request that no policy has charged, it
    /// does nothing.
    #[must_use]
    pub fn meter_all(&self) -> Meter {
        self.settle_all(0);
        Meter { settlement: self.clone(), policy: None }
    }

    /// Returns a meter that counts the request's cost for this policy from now on. It starts at zero, so a client that
    /// disconnects before the first chunk is not charged.
    ///
    /// # Errors
    ///
    /// If no policy with this name awaits a report, or if the response's body has ended.
    pub fn meter(&self, policy: &str) -> Result<Meter, SettleError> {
        self.settle(policy, 0)?;
        Ok(Meter { settlement: self.clone(), policy: Some(policy.into()) })
    }

    /// Changes the reported cost for all policies with this name.
    fn report(&self, policy: &str, change: impl Fn(u64) -> u64) -> Result<(), SettleError> {
        let reported = self.known().filter(|report| *report.policy == *policy).map(|report| report.change(&change));
        match reported.reduce(|one, other| one | other) {
            Some(true) => Ok(()),
            Some(false) => Err(SettleError::Ended),
            None => {
                settled_names::note_unawaited(Some(policy));
                let known = self.known().map(|report| report.policy.to_string()).collect();
                Err(SettleError::UnknownPolicy { policy: policy.to_owned(), known })
            }
        }
    }

    /// Changes the reported cost for all policies, and returns how many have not ended.
    fn report_to_all(&self, change: impl Fn(u64) -> u64) -> usize {
        let mut reported = None;
        for report in self.known() {
            *reported.get_or_insert(0) += usize::from(report.change(&change));
        }
        reported.unwrap_or_else(|| {
            settled_names::note_unawaited(None);
            0
        })
    }

    /// The reports for the policies in all layers.
    fn known(&self) -> impl Iterator<Item = &Report> {
        self.chain().flat_map(|settlement| &settlement.reports.0)
    }

    /// This settlement, then the outer layers' settlements.
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |settlement| settlement.outer.as_deref())
    }
}

/// Counts a request's cost while its response is sent: see [`Settlement::meter`]. Each unit is reported when it is
/// added, so nothing is lost if a client disconnects and the meter is dropped with the stream.
///
/// ```
/// use tower_sluice::policy::SettleError;
/// use tower_sluice::Settlement;
///
/// async fn stream(settlement: Settlement, words: Vec<String>) -> Result<Vec<String>, SettleError> {
///     let tokens = settlement.meter("tokens")?;
///     Ok(words.into_iter().inspect(|_| tokens.add(1)).collect())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Meter {
    settlement: Settlement,
    /// `None` for each policy that has charged the request.
    policy: Option<Box<str>>,
}

impl Meter {
    /// Adds `units` of the policy's quota. After the response's body has ended, this has no effect, because nothing is
    /// sent any more.
    pub fn add(&self, units: u64) {
        match &self.policy {
            // The policy was known when the meter was made, so a failure means that the body has ended.
            Some(policy) => drop(self.settlement.add(policy, units)),
            None => {
                self.settlement.add_all(units);
            }
        }
    }
}

impl Report {
    /// Changes the reported cost, unless the body has ended, and returns whether it has not.
    fn change(&self, change: impl Fn(u64) -> u64) -> bool {
        let change = |before| (before != ENDED).then(|| change(cost(before).unwrap_or(0)).min(ENDED - 1));
        // Relaxed, because nothing is published with the cost.
        self.cost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }
}

impl Reports {
    /// Reports for policies with these names.
    pub(crate) fn for_policies(policies: impl Iterator<Item = Arc<str>>) -> Self {
        Self(policies.map(|policy| Report { policy, cost: AtomicU64::new(NONE) }).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cost that was reported for a policy so far.
    pub(crate) fn so_far(&self, policy: &str) -> Option<u64> {
        self.find(policy).and_then(|report| cost(report.cost.load(Ordering::Relaxed)))
    }

    /// Ends the reports for a policy, and returns the last one.
    pub(crate) fn end(&self, policy: &str) -> Option<u64> {
        self.find(policy).and_then(|report| cost(report.cost.swap(ENDED, Ordering::Relaxed)))
    }

    fn find(&self, policy: &str) -> Option<&Report> {
        self.0.iter().find(|report| *report.policy == *policy)
    }
}

/// The cost, unless `report` is a mark.
fn cost(report: u64) -> Option<u64> {
    Some(report).filter(|report| *report < ENDED)
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reports = self.chain().flat_map(|settlement| &settlement.reports.0);
        let costs = reports.map(|report| (&report.policy, cost(report.cost.load(Ordering::Relaxed))));
        f.debug_map().entries(costs).finish()
    }
}

impl fmt::Display for SettleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPolicy { policy, known } if known.is_empty() => write!(
                f,
                "no policy awaits the cost of this request: `{policy}` has not charged it, or is not `settle_by_handler`"
            ),
            Self::UnknownPolicy { policy, known } => write!(
                f,
                "no policy `{policy}` awaits the cost of this request (there are: {}); call `settle_by_handler` on it",
                known.join(", ")
            ),
            Self::Ended => {
                f.write_str("the request is over, and its charge is final; report each chunk before it is sent")
            }
        }
    }
}

impl Error for SettleError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(names: &[&str]) -> Arc<Reports> {
        Arc::new(Reports::for_policies(names.iter().map(|name| Arc::from(*name))))
    }

    #[test]
    fn the_last_report_before_the_end_counts() {
        let reports = reports(&["tokens", "rows"]);
        let settlement = Settlement::new(Arc::clone(&reports), None);
        assert_eq!(reports.so_far("tokens"), None);
        assert_eq!(settlement.settle("tokens", 5), Ok(()));
        // The two greatest numbers are marks.
        assert_eq!(settlement.settle("tokens", u64::MAX), Ok(()));
        assert_eq!((reports.so_far("tokens"), reports.so_far("rows")), (Some(u64::MAX - 2), None));
        assert_eq!((reports.end("tokens"), reports.end("rows")), (Some(u64::MAX - 2), None));
        assert_eq!(settlement.settle("tokens", 1), Err(SettleError::Ended));
        assert_eq!(settlement.settle("rows", 1), Err(SettleError::Ended));
        assert_eq!(reports.end("tokens"), None, "it is charged once");
    }

    #[test]
    fn meters_count_from_zero_to_the_end() {
        let reports = reports(&["tokens"]);
        let settlement = Settlement::new(Arc::clone(&reports), None);
        let meter = settlement.meter("tokens").unwrap();
        assert_eq!(reports.so_far("tokens"), Some(0));
        meter.add(3);
        meter.clone().add(4);
        assert_eq!(settlement.add("tokens", 1), Ok(()));
        drop(meter);
        assert_eq!(reports.so_far("tokens"), Some(8));
        let meter = settlement.meter("tokens").unwrap();
        meter.add(u64::MAX);
        meter.add(1);
        assert_eq!(reports.end("tokens"), Some(u64::MAX - 2));
        meter.add(1);
        assert_eq!(settlement.add("tokens", 1), Err(SettleError::Ended));
        assert!(settlement.meter("tokens").is_err() && settlement.meter("words").is_err());
        assert_eq!(reports.end("tokens"), None);
    }

    #[test]
    fn unnamed_reports_reach_all_that_charged() {
        let (outer, inner) = (reports(&["included"]), reports(&["tokens", "pool"]));
        let settlement = Settlement::new(Arc::clone(&inner), Some(Settlement::new(Arc::clone(&outer), None)));
        assert_eq!((settlement.settle_all(7), settlement.add_all(2)), (3, 3));
        assert_eq!(inner.end("pool"), Some(9));
        let meter = settlement.meter_all();
        meter.add(4);
        assert_eq!(settlement.add_all(1), 2, "one has ended");
        assert_eq!((outer.end("included"), inner.end("tokens"), inner.end("pool")), (Some(5), Some(5), None));
        meter.add(1);
        assert_eq!(settlement.settle_all(1), 0, "all have ended");
        // A request that no policy has charged.
        let uncharged = Settlement { reports: reports(&[]), outer: None };
        uncharged.meter_all().add(1);
        assert_eq!((uncharged.settle_all(1), uncharged.add_all(1)), (0, 0));
    }

    /// A layer for a customer is around one for the company, each with its tokens.
    #[test]
    fn layers_share_reports_by_name() {
        let outer = reports(&["tokens"]);
        let inner = reports(&["tokens"]);
        let settlement = Settlement::new(Arc::clone(&inner), Some(Settlement::new(Arc::clone(&outer), None)));
        assert_eq!((settlement.add("tokens", 2), settlement.add("tokens", 5)), (Ok(()), Ok(())));
        assert_eq!(inner.end("tokens"), Some(7));
        assert_eq!(settlement.settle("tokens", 9), Ok(()), "the outer one has not ended");
        assert_eq!((outer.end("tokens"), inner.end("tokens")), (Some(9), None));
    }

    #[test]
    fn inner_layers_do_not_hide_outer_policies() {
        let outer = reports(&["tokens"]);
        let inner = reports(&["rows"]);
        let settlement = Settlement::new(Arc::clone(&inner), Some(Settlement::new(Arc::clone(&outer), None)));
        assert_eq!((settlement.settle("tokens", 1), settlement.settle("rows", 2)), (Ok(()), Ok(())));
        assert_eq!((outer.end("tokens"), inner.end("rows")), (Some(1), Some(2)));
        let empty = SettleError::UnknownPolicy { policy: "words".to_owned(), known: Vec::new() };
        assert_eq!(
            empty.to_string(),
            "no policy awaits the cost of this request: `words` has not charged it, or is not `settle_by_handler`"
        );
        let unknown = settlement.settle("words", 1).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "no policy `words` awaits the cost of this request (there are: rows, tokens); call `settle_by_handler` on it"
        );
    }
}
