//! The setters for a request's cost, and for when it is charged.

use std::num::NonZeroU32;

use crate::engine::domain::Domain;
use crate::engine::policy::billing::Bill;
use crate::engine::policy::costs::Cost;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::facts::Fact;
use crate::engine::policy::retries::{ChargeOnce, Retries};
use crate::engine::settled_names;
use crate::values::{Priority, Quota};

impl<D: Domain> Policy<D> {
    /// Sets the cost of a request, in the quota's units; 1 unless set. Excludes [`cost_fn`](Self::cost_fn).
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects a constant cost of 0, which would not limit
    /// anything. That holds even with [`cost_after`](Self::cost_after), because such a request is always admitted, and
    /// its final cost is charged only as far as units are left. To exempt some requests, use [`when`](Self::when) or
    /// [`cost_fn`](Self::cost_fn).
    #[doc(alias = "weight")]
    pub fn cost(self, cost: u64) -> Self {
        self.with_option(Fact::Cost, |policy| policy.costs.cost = Cost::Fixed(cost))
    }

    /// Computes a request's cost from its head. A cost above the burst is rejected, without a wait. A request with cost
    /// 0 is not charged, and is admitted unless its key is [banned](Self::penalty).
    pub fn cost_fn(self, cost: impl Fn(&D::Subject<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with_option(Fact::CostFn, |policy| policy.costs.cost = Cost::PerRequest(Box::new(cost)))
    }

    /// Gives each key its own quota, for example the customer's plan that an authentication layer has put into the
    /// request. `None` stands for the policy's quota, and [`Quota::suspended`] rejects all requests with the key.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::key::User;
    /// use tower_sluice::{MissingKey, Policy, Quota};
    ///
    /// /// An extension, which the authentication layer attaches to requests.
    /// #[derive(Clone, Copy)]
    /// struct Plan(Quota);
    ///
    /// let api = Policy::new("api", TokenBucket::new(Quota::per_minute(60)))
    ///     .key(User::key())
    ///     .on_missing_key(MissingKey::Share)
    ///     .quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0));
    /// ```
    ///
    /// The policy's algorithm and store are used. A window takes the quota's limit and period, and ignores its burst. A
    /// calendar window takes only the limit. Each response advertises its own key's quota. A [cost](Self::cost) above
    /// the burst of a key's quota is rejected, without a wait.
    ///
    /// # Consistency
    ///
    /// The quota is looked up once per request, and applies to all the request's steps, including refunds, settlements
    /// and fields. Take it from the server's own data about the client, not from a field that the client sends.
    ///
    /// It must be the *key's* quota, and must not depend on the request, because a generous quota restores used units
    /// sooner than a strict one. The [guide](crate::guide::quotas#a-quota-per-customer) has examples of the damage.
    /// Instead, write a policy for each kind of request, with [`when`](Self::when). If a key's quota goes back and
    /// forth within the first 1,000 requests, a warning is logged once.
    ///
    /// A key keeps its used units when its quota changes, as after a [live change](crate::LimitsHandle): five used of
    /// ten become five used of fifty. The first request under the new quota converts the key, even if it is rejected.
    ///
    /// **In a policy with windows, give all quotas one period**, or take a bucket. A count that is moved into a shorter
    /// period ends with that period.
    ///
    /// If a bucket's rate, or a window's period, changes between a charge and its refund, the refund is lost, in memory
    /// and on Redis. On Redis, the first charge after a change takes a second round trip.
    ///
    /// In a [`LeakyQueue`](crate::LeakyQueue#quotas-of-the-keys-own), each key's requests depart at its quota's rate.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects this option with a limiter that [does not
    /// take quotas](crate::limiter::Description::takes_quotas): a [`SharedQueue`](crate::SharedQueue), a
    /// [`SlowDown`](crate::SlowDown), a [`Concurrency`](crate::Concurrency), or a custom limiter that does not declare
    /// support for them.
    ///
    /// # Memory
    ///
    /// In memory, a table with a fixed size: [98 bytes per key](crate::store::MemoryStore#quotas-of-the-keys-own) for
    /// buckets, regardless of the number of quotas. The response fields' texts are kept for 64 quotas per policy, some
    /// 20 KiB. For further quotas, they are made for each response.
    #[doc(alias("plan", "tier", "per user"))]
    pub fn quota_fn(self, quota: impl Fn(&D::Subject<'_>) -> Option<Quota> + Send + Sync + 'static) -> Self {
        self.with_quotas(Fact::QuotaFn, quota)
    }

    /// Gives each key its own windows, with their limit, for example 10,000 a month from the 17th in the customer's
    /// time zone. `None` stands for the policy's window.
    ///
    /// ```
    /// use tower_sluice::key::User;
    /// use tower_sluice::{CalendarWindow, MissingKey, Policy};
    ///
    /// /// An extension, which the authentication layer attaches to requests.
    /// #[derive(Clone)]
    /// struct Billing(CalendarWindow);
    ///
    /// let month = Policy::new("month", CalendarWindow::monthly(1_000))
    ///     .key(User::key())
    ///     .on_missing_key(MissingKey::Share)
    ///     .window_fn(|request| request.extensions().get::<Billing>().map(|billing| billing.0.clone()));
    /// ```
    ///
    /// All that [`quota_fn`](Self::quota_fn) says about quotas holds for windows: the window must be the *key's*, it is
    /// looked up once per request, and it applies to refunds, the settlement and fields. See [when a key's window
    /// changes](crate::CalendarWindow#windows-of-the-keys-own).
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects this option with a limiter other than a
    /// [`CalendarWindow`](crate::CalendarWindow), in memory or on a server, and together with
    /// [`quota_fn`](Self::quota_fn).
    ///
    /// # Cost
    ///
    /// A window that is built once and cloned costs the same as a quota. Building a window for each request takes about
    /// a microsecond more. A process keeps 150 bytes for each combination of zone, period and first day that it has
    /// seen, out of some 23,000.
    #[cfg(feature = "calendar")]
    #[doc(alias("billing period", "time zone", "anchor"))]
    pub fn window_fn(
        self,
        window: impl Fn(&D::Subject<'_>) -> Option<crate::CalendarWindow> + Send + Sync + 'static,
    ) -> Self {
        self.with_quotas(Fact::WindowFn, move |head| window(head).map(|window| window.own_quota()))
    }

    /// Gives each key its own limit on requests in flight, for example the number in the customer's plan. `None` stands
    /// for the policy's limit, and 0 [suspends](Quota::suspended) the key.
    ///
    /// ```
    /// use tower_sluice::key::User;
    /// use tower_sluice::{Concurrency, MissingKey, Policy};
    ///
    /// /// An extension, which the authentication layer attaches to requests.
    /// #[derive(Clone, Copy)]
    /// struct Seats(u64);
    ///
    /// let in_flight = Policy::new("in-flight", Concurrency::new(2))
    ///     .key(User::key())
    ///     .on_missing_key(MissingKey::Share)
    ///     .limit_fn(|request| request.extensions().get::<Seats>().map(|seats| seats.0));
    /// ```
    ///
    /// The limit may change from one request to the next. Requests in flight stay, and under a lowered limit, no
    /// request is admitted until enough of them are over. A request that [waits](crate::Concurrency#waiting) is judged
    /// by the limit that it came with, in its turn.
    ///
    /// Each response advertises its own key's limit. A limit above the limiter's maximum counts as the maximum.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects this option with a limiter other than a
    /// [`Concurrency`](crate::Concurrency) or a [`SharedConcurrency`](crate::SharedConcurrency).
    #[doc(alias("plan", "concurrency", "seats"))]
    pub fn limit_fn(self, limit: impl Fn(&D::Subject<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.with_quotas(Fact::LimitFn, move |head| limit(head).map(Quota::in_flight))
    }

    /// Gives keys their own quotas. The options that do so exclude each other.
    fn with_quotas(
        mut self,
        option: Fact,
        quota: impl Fn(&D::Subject<'_>) -> Option<Quota> + Send + Sync + 'static,
    ) -> Self {
        self.options.set(option);
        self.costs.set_quota_fn(quota);
        self.description.prepare_for_quotas();
        // `charge_once` does the same if it is called after this.
        if let Some(retries) = &self.billing.retries {
            retries.take_quotas();
        }
        self
    }

    /// Sets the function that finds a request's class. While a server is overloaded, requests in a higher class are
    /// served first, and requests in a lower class are rejected first. [`Priority::Normal`] unless set.
    ///
    /// ```
    /// use tower_sluice::limiter::Priority;
    /// use tower_sluice::{Overload, Policy};
    ///
    /// let overload = Policy::new("overload", Overload::new()).priority_fn(|request| match request.uri().path() {
    ///     "/login" | "/checkout" => Priority::Critical,
    ///     "/export" => Priority::Low,
    ///     _ => Priority::Normal,
    /// });
    /// ```
    ///
    /// Take the class from the server's own data (the route, an authenticated client's plan), and not from a field that
    /// the client sends, because every client would claim the highest. It is found once per request.
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it with a limiter that does not
    /// [shed](crate::limiter::Description::shedding).
    #[doc(alias("load shedding", "importance", "criticality"))]
    pub fn priority_fn(self, priority: impl Fn(&D::Subject<'_>) -> Priority + Send + Sync + 'static) -> Self {
        self.with_option(Fact::PriorityFn, |policy| policy.precedence.priority = Some(Box::new(priority)))
    }

    /// Sets the function that finds the weight of a request's key. While requests wait, a [key](Self::key) with weight
    /// 3 is served three times the units of a key with weight 1 in the same [class](Self::priority_fn). 1 unless set.
    ///
    /// ```
    /// use std::num::{NonZeroU16, NonZeroU32};
    ///
    /// use tower_sluice::key::User;
    /// use tower_sluice::{MissingKey, Overload, Policy};
    ///
    /// /// An extension, which the authentication layer attaches to requests.
    /// #[derive(Clone, Copy)]
    /// struct Seats(NonZeroU32);
    ///
    /// let overload = Policy::new("overload", Overload::new())
    ///     .key(User::key())
    ///     .on_missing_key(MissingKey::Share)
    ///     .weight_fn(|request| request.extensions().get::<Seats>().map_or(NonZeroU32::MIN, |seats| seats.0));
    /// ```
    ///
    /// It must be the *key's* weight, and must not depend on the request.
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it with a limiter that does not
    /// [shed](crate::limiter::Description::shedding).
    #[doc(alias("fair share", "weighted fair queueing"))]
    pub fn weight_fn(self, weight: impl Fn(&D::Subject<'_>) -> NonZeroU32 + Send + Sync + 'static) -> Self {
        self.with_option(Fact::WeightFn, |policy| policy.precedence.weight = Some(Box::new(weight)))
    }

    /// Charges only requests whose responses meet `condition`, for example failed logins, or responses that were not
    /// cached.
    ///
    /// A request is charged when it comes, and the charge is refunded if its response does not meet the condition. If
    /// there is no response, because the client disconnected or the service failed, the request stays charged. Excludes
    /// [`cost_after`](Self::cost_after) and the settlements ([`settle_by_handler`](Self::settle_by_handler),
    /// [`settle_by_content_bytes`](Self::settle_by_content_bytes)).
    ///
    /// # gRPC
    ///
    /// A gRPC call always has the HTTP status 200. Its own status is
    /// [`grpc_status`](crate::policy::ResponseHead::grpc_status): 16, not 401. If that comes in the trailers,
    /// `condition` is asked once they are there, and gets the head's fields with them. If the client disconnects before
    /// the trailers, the request stays charged. gRPC-Web has its trailers in the body, where nothing reads them.
    ///
    /// # In flight
    ///
    /// Until its response comes, a request counts, regardless of the later response. So the limit also bounds a key's
    /// requests in flight, including valid ones. To count failures in one short step, such as an API key lookup,
    /// [charge around that step](crate::guide::plans#what-happens).
    ///
    /// # Waits
    ///
    /// A charge is open until its response comes. If a rejected request would fit once its key's open charges were
    /// refunded, it need not wait until the limit allows it. In that case the advertised wait is the recent duration of
    /// responses, since the open charges are settled by then. We average the key's own responses. While that average is
    /// unknown, it is the average over all responses, but 1 s at most, so that other clients' slow requests do not
    /// lengthen the wait. If the charges are not refunded after all, the next rejection advertises the rest of the
    /// wait. Such rejections do not count for a [ban](Self::penalty).
    ///
    /// This holds for [`cost_after`](Self::cost_after) and the settlements, too: an estimate is usually refunded in
    /// part.
    ///
    /// # Accuracy
    ///
    /// **Use a window if clients could exploit an inexact count**, as with password guesses. A window is exact: when a
    /// key's requests come in one window, at most `limit` are in flight at once, and at most `limit` are charged.
    ///
    /// A bucket refills while responses are awaited. So `burst` + rate × duration requests may be in flight at once. A
    /// refund gives back the part of the request's own charge that is not refilled yet, even if the bucket has refilled
    /// other requests' charges meanwhile ([`Receipt`](crate::limiter::Receipt)). So a client that keeps its own valid
    /// logins in flight, and sends each again in time, saves refilled units. With 5 per minute, it can make 105 guesses
    /// at one instant after 20 minutes, but 5 with a window. The [guide](crate::guide::login) protects a login.
    ///
    /// ```
    /// use tower_sluice::algorithm::SlidingWindow;
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// let guesses = Policy::new("failed-logins", SlidingWindow::new(Quota::per_hour(10)))
    ///     .key(PeerIp::new())
    ///     .charge_when(|response| response.status() == http::StatusCode::UNAUTHORIZED);
    /// ```
    #[doc(alias("failed login", "skip successful requests"))]
    pub fn charge_when(self, condition: impl Fn(&D::Outcome<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.with_option(Fact::ChargeWhen, |policy| policy.billing.bill = Some(Bill::When(Box::new(condition))))
    }

    /// Computes a request's final cost from its response's head. A handler can put the cost into the response's
    /// extensions.
    ///
    /// The [`cost`](Self::cost) is charged when the request comes. If the final cost is less, the excess is refunded.
    /// If it is more, the shortfall is charged as far as units are left, and the rest is forgiven, so that no key
    /// begins the next period with a debt. A request without a response keeps its first charge. Excludes
    /// [`charge_when`](Self::charge_when) and the settlements. A gRPC call's cost may depend on its trailers, as
    /// [there](#grpc).
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// #[derive(Clone)]
    /// struct RowsRead(u64);
    ///
    /// let rows = Policy::new("rows", TokenBucket::new(Quota::per_minute(10_000)))
    ///     .cost(100)
    ///     .cost_after(|response| response.extensions().get::<RowsRead>().map_or(100, |rows| rows.0));
    /// ```
    pub fn cost_after(self, cost: impl Fn(&D::Outcome<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with_option(Fact::CostAfter, |policy| policy.billing.bill = Some(Bill::Cost(Box::new(cost))))
    }

    /// Charges a request and its retries once, by their common idempotency key, so that a client that lost a response
    /// is not charged for a retry. Off unless set, because the client chooses which requests it marks as retries. With
    /// this option, a client can have up to 1 + [`free_retries`](ChargeOnce::free_retries) times the quota. See
    /// [`ChargeOnce`].
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it together with
    /// [`cost_after`](Self::cost_after) and the settlements, since they know a retry's cost too late, and with limiters
    /// that delay requests, hold units or do not advertise a quota.
    ///
    /// Processes that share the limit on Redis or PostgreSQL share the free retries. In memory, each process has its
    /// own.
    #[doc(alias("idempotency key", "retry"))]
    pub fn charge_once(mut self, once: ChargeOnce<D>) -> Self {
        self.options.set(Fact::ChargeOnce);
        let retries = Retries::new(once, &self.description);
        // `quota_fn` does the same if it is called after this.
        if self.costs.quota.is_some() {
            retries.take_quotas();
        }
        self.billing.retries = Some(Box::new(retries));
        self
    }

    /// Lets the handler report a request's final cost, through the [`Settlement`](crate::Settlement) in the request's
    /// extensions, until the response's body has ended.
    ///
    /// The [`cost`](Self::cost) is charged when the request comes, as an
    /// [estimate](crate::guide::real_costs#how-to-choose-the-estimate). When the body has ended, the reported cost is
    /// charged instead, as [`cost_after`](Self::cost_after) describes. Without a report, the estimate stays, unless the
    /// client disconnects while the request waits in a queue. [Rejected requests' waits](#waits) allow for refunds.
    /// With windows, the charge is exact to the unit ([guide](crate::guide::real_costs#what-is-exact)). Excludes
    /// [`charge_when`](Self::charge_when) and the other options for the final cost.
    ///
    /// ```
    /// use tower_sluice::algorithm::SlidingWindow;
    /// use tower_sluice::key::HeaderKey;
    /// use tower_sluice::{Policy, Quota};
    ///
    /// let tokens = Policy::new("tokens", SlidingWindow::new(Quota::per_minute(60_000)))
    ///     .key(HeaderKey::from_static("x-api-key"))
    ///     .cost_fn(|request| if request.uri().path() == "/chat" { 1_000 } else { 100 })
    ///     .settle_by_handler();
    /// ```
    pub fn settle_by_handler(self) -> Self {
        settled_names::add(&self.name);
        self.with_option(Fact::SettleByHandler, |policy| policy.billing.bill = Some(Bill::ByHandler))
    }

    /// Lets a key owe the part of a final cost that exceeds its remaining units, instead of forgiving it. The key's
    /// later requests are rejected until time has paid enough of the debt for them to fit.
    ///
    /// For [`settle_by_handler`](Self::settle_by_handler), [`settle_by_content_bytes`](Self::settle_by_content_bytes)
    /// and [`cost_after`](Self::cost_after). A shortfall is charged as far as units are left, and the rest is the debt.
    /// Time pays it, at the key's quota, and rejections meanwhile advertise the exact wait. So in the long run a key
    /// gets its [quota](crate::guide::real_costs#how-to-choose-the-estimate). At any moment it may be ahead of it, by
    /// an amount that depends on the highest request cost, and on its number of requests in flight.
    ///
    /// Response fields, requests with cost 0 and [`LimitsHandle::peek`](crate::LimitsHandle::peek) show the units that
    /// are left after the debt. A debt survives a live change. Under another quota the key owes the same number of
    /// units. It pays them at that quota's rate from its first request under it on, so that its rejections advertise
    /// true waits. A [reset](crate::LimitsHandle::reset) forgives it.
    ///
    /// In a [`Balance`](crate::Balance), a key owes the rest until a credit has paid it.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it without one of the three options above,
    /// and with any other limiter that does not advertise a quota, because time would not pay the debt at any rate.
    ///
    /// # Memory
    ///
    /// In this process: from the first debt on, 5 MiB for 65,536 keys that owe something. If there are more, the debts
    /// that would be paid first are forgiven, which is logged once, and [counted](crate::guide::monitoring#metrics).
    ///
    /// # On several machines
    ///
    /// A server that [keeps debts](crate::store::remote::Backend::keeps_standing), as Redis does, keeps them with the
    /// budgets. A debt that one process adds counts for all processes, which learn of it without further calls. A debt
    /// is added in the background, on Redis by two calls. On the server, it keeps its duration if the key's quota
    /// changes, and a refund while the key owes something has no effect. If the server cannot be reached, the process
    /// that added the debt keeps it in its own memory, as above.
    pub fn owe_shortfalls(self) -> Self {
        self.with_option(Fact::OweShortfalls, |policy| policy.billing.owes_shortfalls = true)
    }
}
