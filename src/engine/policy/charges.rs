//! The setters of what a request is charged, and when.

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
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects a constant cost of 0, which would limit
    /// nothing, even with [`cost_after`](Self::cost_after): such a request is always admitted, and its final cost is
    /// charged only as far as units are left. To exempt some requests, use [`when`](Self::when) or
    /// [`cost_fn`](Self::cost_fn).
    #[doc(alias = "weight")]
    pub fn cost(self, cost: u64) -> Self {
        self.with_option(Fact::Cost, |policy| policy.costs.cost = Cost::Fixed(cost))
    }

    /// Computes the cost of a request from its head. A cost above the burst is rejected, without a wait. A request of
    /// cost 0 is charged nothing, and admitted unless its key is [banned](Self::penalty).
    pub fn cost_fn(self, cost: impl Fn(&D::Subject<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with_option(Fact::CostFn, |policy| policy.costs.cost = Cost::PerRequest(Box::new(cost)))
    }

    /// Gives each key a quota of its own: the quota of the customer's plan, say, which an authentication layer has
    /// put into the request. `None` stands for the policy's own quota, and [`Quota::suspended`] rejects all requests of
    /// the key.
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
    /// window of the calendar takes the limit only. Each response advertises the quota of its own key. A
    /// [cost](Self::cost) above the burst of a key's quota is rejected, without a wait.
    ///
    /// # Consistency
    ///
    /// The quota is looked up once per request, and applies to all steps of the request: refunds, settlements and
    /// fields included. Take it from the server's own data about the client, not from a field that the client sends.
    ///
    /// It must be the quota of the *key*, and not depend on the request. A change of the quota keeps the number of used
    /// units, and a generous quota restores them sooner than a strict one: with 5 per hour for `/login` and 100 per
    /// second for all other paths, a client that sends both in turn, five times a second, gets 18,000 logins an hour.
    /// Instead, write a policy for each quota, with [`when`](Self::when). If the quota of a key goes back and forth
    /// within the first 1,000 requests, a warning is logged once.
    ///
    /// A key keeps its used units when its quota changes, as after a [live change](crate::LimitsHandle): five used of
    /// ten become five used of fifty. The first request under the new quota converts the key, even if it is rejected.
    ///
    /// **Give all quotas of a policy with windows one period**, or take a bucket. A count that is moved into a
    /// shorter period ends with that period: if a key goes back and forth between 1,000 per day and 10 per second, a
    /// window admits 10,100 of its requests in a minute, and a bucket 1,360.
    ///
    /// If the rate of a bucket, or the period of a window, changes between a charge and its refund, the refund is lost,
    /// in memory and on Redis. On Redis, the first charge after a change takes a second round trip.
    ///
    /// In a [`LeakyQueue`](crate::LeakyQueue#quotas-of-the-keys-own), the requests of each key depart at the rate of
    /// its quota.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects this option with a limiter that [takes no
    /// quotas](crate::limiter::Description::takes_quotas): a [`SharedQueue`](crate::SharedQueue), a
    /// [`SlowDown`](crate::SlowDown), a [`Concurrency`](crate::Concurrency), or a custom limiter that does not declare
    /// support for them.
    ///
    /// # Memory
    ///
    /// In memory, a table of a fixed size: [98 bytes per key](crate::store::MemoryStore#quotas-of-the-keys-own) for
    /// buckets, regardless of the number of quotas. The texts of the response fields are kept for 64 quotas per
    /// policy, some 20 KiB; for further quotas, they are made for each response.
    #[doc(alias("plan", "tier", "per user"))]
    pub fn quota_fn(self, quota: impl Fn(&D::Subject<'_>) -> Option<Quota> + Send + Sync + 'static) -> Self {
        self.with_quotas(Fact::QuotaFn, quota)
    }

    /// Gives each key windows of its own, with their limit: 10,000 a month from the 17th, by the clocks of the
    /// customer's zone. `None` stands for the policy's own window.
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
    /// All that [`quota_fn`](Self::quota_fn) says of quotas holds for windows: the window must be that of the *key*, it
    /// is looked up once per request, and applies to its refunds, its settlement and its fields. See [when a key's
    /// window changes](crate::CalendarWindow#windows-of-the-keys-own).
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects this option with a limiter other than a
    /// [`CalendarWindow`](crate::CalendarWindow), in memory or on a server, and together with
    /// [`quota_fn`](Self::quota_fn).
    ///
    /// # Cost
    ///
    /// For a window that is built once and cloned, as for a quota. A window that is built for each request takes about
    /// a microsecond more. A process keeps 150 bytes for each combination of zone, period and first day that it has
    /// seen, of which there are some 23,000.
    #[cfg(feature = "calendar")]
    #[doc(alias("billing period", "time zone", "anchor"))]
    pub fn window_fn(
        self,
        window: impl Fn(&D::Subject<'_>) -> Option<crate::CalendarWindow> + Send + Sync + 'static,
    ) -> Self {
        self.with_quotas(Fact::WindowFn, move |head| window(head).map(|window| window.own_quota()))
    }

    /// Gives each key a limit of its own on what it has in flight: the number of the customer's plan, say. `None`
    /// stands for the policy's own limit, and 0 [suspends](Quota::suspended) the key.
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
    /// The limit may change from one request to the next. Requests in flight stay, and none is admitted under a lowered
    /// limit until enough of them are over. A request that [waits](crate::Concurrency#waiting) is judged by the limit
    /// that it came with, in its turn.
    ///
    /// Each response advertises the limit of its own key. A limit above the greatest that a limiter can have counts as
    /// the greatest.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects this option with a limiter other than a
    /// [`Concurrency`](crate::Concurrency) or a [`SharedConcurrency`](crate::SharedConcurrency).
    #[doc(alias("plan", "concurrency", "seats"))]
    pub fn limit_fn(self, limit: impl Fn(&D::Subject<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.with_quotas(Fact::LimitFn, move |head| limit(head).map(Quota::in_flight))
    }

    /// Gives keys quotas of their own. An option of this kind excludes the others.
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

    /// Finds the class of a request: while a server is overloaded, requests of a higher class are served first, and
    /// requests of a lower class are rejected first. [`Priority::Normal`] unless set.
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
    /// Take the class from the server's own data (the route, the plan of an authenticated client), and not from a field
    /// that the client sends: every client would claim the highest. It is found once per request.
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it with a limiter that does not
    /// [shed](crate::limiter::Description::shedding).
    #[doc(alias("load shedding", "importance", "criticality"))]
    pub fn priority_fn(self, priority: impl Fn(&D::Subject<'_>) -> Priority + Send + Sync + 'static) -> Self {
        self.with_option(Fact::PriorityFn, |policy| policy.precedence.priority = Some(Box::new(priority)))
    }

    /// Finds the weight of the key of a request: while requests wait, a [key](Self::key) of weight 3 is served three
    /// times as many units as a key of weight 1 in the same [class](Self::priority_fn). 1 unless set.
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
    /// It must be the weight of the *key*, and not depend on the request.
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it with a limiter that does not
    /// [shed](crate::limiter::Description::shedding).
    #[doc(alias("fair share", "weighted fair queueing"))]
    pub fn weight_fn(self, weight: impl Fn(&D::Subject<'_>) -> NonZeroU32 + Send + Sync + 'static) -> Self {
        self.with_option(Fact::WeightFn, |policy| policy.precedence.weight = Some(Box::new(weight)))
    }

    /// Charges only requests whose responses meet `condition`: failed logins, say, or responses that were not
    /// cached.
    ///
    /// A request is charged when it comes, and the charge is refunded if its response does not meet the condition. A
    /// request without a response, since the client disconnected or the service failed, stays charged. Excludes
    /// [`cost_after`](Self::cost_after) and the settlements ([`settle_by_handler`](Self::settle_by_handler),
    /// [`settle_by_content_bytes`](Self::settle_by_content_bytes)).
    ///
    /// # gRPC
    ///
    /// The HTTP status of a gRPC call is 200 in any case. Its own is
    /// [`grpc_status`](crate::policy::ResponseHead::grpc_status): 16, not 401. If that comes in the trailers,
    /// `condition` is asked once they are there, and gets the fields of the head with them; without trailers, since the
    /// client disconnected, the request stays charged. gRPC-Web has its trailers in the body, where nothing reads them.
    ///
    /// # In flight
    ///
    /// Until its response comes, a request counts, regardless of the later response. So the limit also bounds the
    /// number of requests of a key in flight, including valid ones. For example, one key sent 1,000 valid requests, 100
    /// per second, which took 200 ms each: about 20 at a time. A limit of ten rejected 520 of them. To count failures
    /// of one short step of the request, such as the look-up of an API key, [charge around that
    /// step](crate::guide::plans#what-happens).
    ///
    /// # Waits
    ///
    /// A charge is open until its response comes. If a rejected request would fit after a refund of its key's open
    /// charges, it need not wait until the limit allows it. Then the advertised wait is the recent duration of
    /// responses, since the open charges are settled by the end of that time. The duration is the average of the key's
    /// own responses. While that is unknown, it is the average of all responses, but 1 s at most, so that slow requests
    /// of other clients do not lengthen the wait. If the charges are not refunded after all, the next rejection
    /// advertises the rest of the wait. Such rejections do not count for a [ban](Self::penalty).
    ///
    /// This holds for [`cost_after`](Self::cost_after) and the settlements, too: an estimate is usually refunded in
    /// part.
    ///
    /// # Accuracy
    ///
    /// **Use a window if clients could exploit an inexact count**, as with password guesses. A window is exact: of
    /// the requests of a key that come in one window, at most `limit` are in flight at once, and at most `limit` are
    /// charged.
    ///
    /// A bucket refills while responses are awaited. So `burst` + rate × duration requests may be in flight at once. A
    /// refund gives back the part of the request's own charge that is not refilled yet, even if the bucket has refilled
    /// the charges of other requests meanwhile ([`Receipt`](crate::limiter::Receipt)). So a client can save refilled
    /// units: it keeps valid logins of its own in flight, and sends each again in time. With 5 per minute, it can then
    /// make 105 guesses at one instant after 20 minutes. With a window, it can make 5.
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

    /// Computes the final cost of a request from the head of its response. A handler can put the cost into the
    /// response's extensions.
    ///
    /// The [`cost`](Self::cost) is charged when the request comes. If the final cost is less, the excess is refunded.
    /// If it is more, the shortfall is charged as far as units are left, and the rest is forgiven, so that no key
    /// begins the next period with a debt. A request without a response keeps its first charge. Excludes
    /// [`charge_when`](Self::charge_when) and the settlements. The cost of a gRPC call may depend on its trailers, as
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

    /// Charges a request and its retries once, by the idempotency key that they have in common: a client that lost a
    /// response is not charged for a retry. Off unless set, since the client chooses which requests it marks as
    /// retries; with it, a client can have up to 1 + [`free_retries`](ChargeOnce::free_retries) times the quota. See
    /// [`ChargeOnce`].
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it together with
    /// [`cost_after`](Self::cost_after) and the settlements, since they know the cost of a retry too late, and with
    /// limiters that delay requests, hold units or advertise no quota.
    ///
    /// Processes that share the limit on Redis or PostgreSQL share the free retries; in memory, each process has its
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

    /// Lets the handler report the final cost of a request, through the [`Settlement`](crate::Settlement) in the
    /// request's extensions, until the body of the response has ended.
    ///
    /// The [`cost`](Self::cost) is charged when the request comes, as an estimate. If the handler reports less, the
    /// excess is refunded when the body has ended; if more, the shortfall is charged as far as units are left, and
    /// the rest is forgiven. Without a report, the estimate stays, also if the client disconnects or the service
    /// fails; but if the client disconnects while the request waits in a queue, so that no handler sees it, nothing is
    /// charged. Response fields show the cost that the handler has reported by the time the head of its response comes;
    /// without a report by then, the estimate. While requests of a key are in flight, a rejected request of it
    /// [waits](#waits) for their refunds, and not for the limit. Excludes
    /// [`charge_when`](Self::charge_when) and the other options for the final cost. It is as accurate as these: with
    /// windows, exact to the unit while the window of the request lasts.
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

    /// Lets a key owe the final cost of its requests beyond its remaining units, instead of forgiving it. Its later
    /// requests are rejected until time has paid enough of the debt for them to fit.
    ///
    /// For [`settle_by_handler`](Self::settle_by_handler), [`settle_by_content_bytes`](Self::settle_by_content_bytes)
    /// and [`cost_after`](Self::cost_after). A shortfall is charged as far as units are left, and the rest is the debt.
    /// Time pays it, at the rate of the key's quota: with a limit of 100 per hour, a request with a final cost of
    /// 10,000 uses up the next 100 hours, and rejections meanwhile advertise the exact wait. So in the long run a key
    /// gets its quota, also if its requests cost more than a burst. At any moment it may be ahead of its quota, by an
    /// amount that depends on the highest cost of a request, and on the number of its requests in flight.
    ///
    /// Response fields, requests of cost 0 and [`LimitsHandle::peek`](crate::LimitsHandle::peek) show the units
    /// that are left after the debt. A debt survives a live change. Under another quota the key owes the same
    /// number of units. It pays them at the rate of that quota from its first request under it on, so that the waits of
    /// its rejections are true. A [reset](crate::LimitsHandle::reset) forgives it.
    ///
    /// A key of a [`Balance`](crate::Balance) owes the rest until a credit has paid it.
    ///
    /// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) rejects it without one of the three options above,
    /// and with any other limiter that advertises no quota, since there is no rate at which time would pay.
    ///
    /// # Memory
    ///
    /// In this process: from the first debt on, 5 MiB for 65,536 keys that owe something. If there are more, the
    /// debts that would be paid first are forgiven; this is logged once, and
    /// [counted](crate::layer::RateLimitLayerBuilder::route).
    ///
    /// # On several machines
    ///
    /// A server that [keeps debts](crate::store::remote::Backend::keeps_standing), as Redis does, keeps them with the
    /// budgets: a debt that one process adds counts for all processes, which learn of it by the calls that they make
    /// anyway. A debt is added in the background, on Redis by two calls. On the server, it keeps its duration if the
    /// quota of its key changes, and a refund while the key owes something has no effect. If the server cannot be
    /// reached, the process that added the debt keeps it in its own memory, as above.
    pub fn owe_shortfalls(self) -> Self {
        self.with_option(Fact::OweShortfalls, |policy| policy.billing.owes_shortfalls = true)
    }
}
