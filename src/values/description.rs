//! `Description`: a limiter's own declaration.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::values::time::Clock;
use crate::values::{
    Adjusting, Batching, ChargingOnce, FindShedder, FindWatcher, KeepsStanding, KeepsStates, Mode, SharesReports,
    ShedsAnybody, Terms, WatchesBodies,
};

/// The properties of a limiter that layers and clients need in advance. Read once, when a policy is made.
///
/// `Description::new()` suits a custom limiter that rejects and never delays. Add [`advertising`](Self::advertising) to
/// report its quota to clients, and [`answering`](Self::answering) for each further mode, such as peeks.
#[derive(Clone, Default)]
#[must_use]
pub struct Description {
    terms: Option<Terms>,
    max_cost: Option<u64>,
    delays: bool,
    holds: bool,
    sheds: bool,
    takes_quotas: bool,
    modes: u8,
    states: Option<Arc<dyn KeepsStates>>,
    batching: Option<Arc<dyn Batching>>,
    charging_once: Option<Arc<dyn ChargingOnce>>,
    keeps_standing: Option<Arc<dyn KeepsStanding>>,
    adjusting: Option<Arc<dyn Adjusting>>,
    shares_reports: Option<Arc<dyn SharesReports>>,
    find_watcher: Option<FindWatcher>,
    find_shedder: Option<FindShedder>,
    clock: Option<Arc<dyn Clock>>,
}

impl Description {
    /// Describes a limiter that is not advertised, admits any cost, never delays, and answers [`Mode::Charge`] only.
    pub const fn new() -> Self {
        Self {
            terms: None,
            max_cost: None,
            delays: false,
            holds: false,
            sheds: false,
            takes_quotas: false,
            modes: 0,
            states: None,
            batching: None,
            charging_once: None,
            keeps_standing: None,
            adjusting: None,
            shares_reports: None,
            find_watcher: None,
            find_shedder: None,
            clock: None,
        }
    }

    /// Advertises these terms to clients. A limiter without terms does not appear in `RateLimit` and
    /// `RateLimit-Policy`.
    pub const fn advertising(mut self, terms: Terms) -> Self {
        self.terms = Some(terms);
        self
    }

    /// Sets the greatest cost that is ever admitted.
    pub const fn admitting_at_most(mut self, cost: u64) -> Self {
        self.max_cost = Some(cost);
        self
    }

    /// Declares that the limiter may delay requests. Such limiters are charged last, so that no request waits only to
    /// be rejected by another policy.
    pub const fn delaying(mut self) -> Self {
        self.delays = true;
        self
    }

    /// Declares that requests hold their units until they are over. A layer then [refunds](crate::Limiter::refund) each
    /// charge when the response body has ended, has failed or was dropped, or when the request ends without a response.
    /// Each receipt is refunded once, also if the policies are changed meanwhile.
    pub const fn holding(mut self) -> Self {
        self.holds = true;
        self
    }

    /// Declares that a rejection is the server's fault, and not the client's, because the server is overloaded. A layer
    /// then answers 503 in place of 429 (in gRPC UNAVAILABLE), the wait of a rejection is an estimate, and no client is
    /// banned for rejections. Policies with such a limiter may have a [`priority_fn`](crate::Policy::priority_fn) and a
    /// [`weight_fn`](crate::Policy::weight_fn).
    pub const fn shedding(mut self) -> Self {
        self.sheds = true;
        self
    }

    /// Declares that the limiter decides [under the keys' own quotas](crate::limiter::Ask::under), so that a policy may
    /// have a [`quota_fn`](crate::Policy::quota_fn), or, depending on the limiter's terms, a `window_fn` or a
    /// [`limit_fn`](crate::Policy::limit_fn). Under a [suspended](crate::Quota::suspended) one, whose limit and period
    /// are zero, it answers [`Decision::suspended`](crate::Decision::suspended).
    pub const fn taking_quotas(mut self) -> Self {
        self.takes_quotas = true;
        self
    }

    /// Declares that the limiter answers this mode, too. It answers every other mode but [`Mode::Charge`] with
    /// [`LimiterError::unsupported`](crate::LimiterError::unsupported), and changes nothing. Without a mode, a layer
    ///
    /// - [`Mode::Peek`]: skips the precheck of this limiter, so that more charges are rolled back;
    /// - [`Mode::Shadow`]: asks [`Mode::Charge`];
    /// - [`Mode::UpTo`]: asks [`Mode::Shadow`], and if that is rejected, once more for the units that are left; it does
    ///   not wait for the answers, so a limiter that calls a server charges nothing;
    /// - [`Mode::Fallback`]: answers 503;
    /// - [`Mode::Reset`]: returns an error.
    pub const fn answering(mut self, mode: Mode) -> Self {
        self.modes |= bit(mode);
        self
    }

    /// Hands key states on to heirs.
    pub(crate) fn keeping_states(mut self, limiter: impl KeepsStates) -> Self {
        self.states = Some(Arc::new(limiter));
        self
    }

    /// Declares that the limiter answers all modes.
    pub(crate) const fn answering_all(mut self) -> Self {
        self.modes = u8::MAX;
        self
    }

    pub(crate) fn batching(mut self, batching: impl Batching) -> Self {
        self.batching = Some(Arc::new(batching));
        self
    }

    pub(crate) fn charging_once(mut self, limiter: impl ChargingOnce) -> Self {
        self.charging_once = Some(Arc::new(limiter));
        self
    }

    pub(crate) fn keeping_standing(mut self, limiter: impl KeepsStanding) -> Self {
        self.keeps_standing = Some(Arc::new(limiter));
        self
    }

    pub(crate) fn adjusting(mut self, limiter: impl Adjusting) -> Self {
        self.adjusting = Some(Arc::new(limiter));
        self
    }

    pub(crate) fn sharing_reports(mut self, limiter: impl SharesReports) -> Self {
        self.shares_reports = Some(Arc::new(limiter));
        self
    }

    /// Declares that the limiter watches response bodies. Takes a function, because limiters that inherit share a
    /// watcher that they do not have when they are described.
    pub(crate) const fn watching_bodies(mut self, find: FindWatcher) -> Self {
        self.find_watcher = Some(find);
        self
    }

    /// The watcher for response bodies, if `limiter`, which has this description, has one.
    pub(crate) fn watcher_of(&self, limiter: &dyn Any) -> Option<Arc<dyn WatchesBodies>> {
        (self.find_watcher?)(limiter)
    }

    /// Declares that the limiter sheds each request at times. Takes a function for the same reason as
    /// [`watching_bodies`](Self::watching_bodies).
    pub(crate) const fn shedding_anybody(mut self, find: FindShedder) -> Self {
        self.find_shedder = Some(find);
        self
    }

    /// The part that sheds each request at times, if `limiter`, which has this description, has one.
    pub(crate) fn shedder_of(&self, limiter: &dyn Any) -> Option<Arc<dyn ShedsAnybody>> {
        (self.find_shedder?)(limiter)
    }

    /// Sets the clock by which it decides in this process.
    pub(crate) fn deciding_by(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The clock by which it decides, unless that is a server's or not known.
    pub(crate) const fn clock(&self) -> Option<&Arc<dyn Clock>> {
        self.clock.as_ref()
    }

    /// The advertised terms, if any.
    #[must_use]
    pub const fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// The greatest cost that is ever admitted, if it is bounded.
    #[must_use]
    pub const fn max_cost(&self) -> Option<u64> {
        self.max_cost
    }

    /// Whether the limiter may delay a request until its turn.
    #[must_use]
    pub const fn delays(&self) -> bool {
        self.delays
    }

    /// Whether requests hold their units until they are over.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.holds
    }

    /// Whether a rejection is the server's fault: see [`shedding`](Self::shedding).
    #[must_use]
    pub const fn sheds(&self) -> bool {
        self.sheds
    }

    /// The work that an admission leaves to do. Every field is listed, so that a new one does not compile before it is
    /// judged.
    pub(crate) const fn lasting(&self) -> Lasting {
        let Self {
            holds,
            sheds,
            terms: _,
            max_cost: _,
            delays: _,
            takes_quotas: _,
            modes: _,
            states: _,
            batching: _,
            charging_once: _,
            keeps_standing: _,
            adjusting: _,
            shares_reports: _,
            // A limiter with a watcher sheds, and so does one with a shedder.
            find_watcher: _,
            find_shedder: _,
            clock: _,
        } = self;
        Lasting { holds: *holds, sheds: *sheds }
    }

    /// Whether the limiter decides under the keys' own quotas.
    #[must_use]
    pub const fn takes_quotas(&self) -> bool {
        self.takes_quotas
    }

    /// The limiter, if the states of its keys are in a table.
    pub(crate) const fn keeps_states(&self) -> Option<&Arc<dyn KeepsStates>> {
        self.states.as_ref()
    }

    /// Makes the table for the keys' own quotas, so that no request has to. If a limiter in memory is in use already,
    /// this copies its keys: 0.1 s for a million, and 2.5 s for ten million.
    pub(crate) fn prepare_for_quotas(&self) {
        if let Some(states) = &self.states {
            states.take_quotas();
        }
    }

    /// Whether the limiter answers this mode.
    #[must_use]
    pub const fn answers(&self, mode: Mode) -> bool {
        self.modes & bit(mode) != 0 || matches!(mode, Mode::Charge)
    }

    /// Whether the limiter decides without waiting, and can be peeked at.
    #[inline]
    pub(crate) const fn answers_at_once(&self) -> bool {
        // Every field is listed, so that a new one does not compile before it is known whether it means a wait.
        let Self {
            delays,
            batching,
            charging_once,
            modes: _,
            terms: _,
            max_cost: _,
            holds: _,
            sheds: _,
            takes_quotas: _,
            states: _,
            keeps_standing: _,
            adjusting: _,
            shares_reports: _,
            find_watcher: _,
            find_shedder: _,
            clock: _,
        } = self;
        !*delays && batching.is_none() && charging_once.is_none() && self.answers(Mode::Peek)
    }

    pub(crate) fn batches(&self) -> Option<&dyn Batching> {
        self.batching.as_deref()
    }

    /// The limiter, if its store keeps records for requests whose retries are free.
    pub(crate) const fn charges_once(&self) -> Option<&Arc<dyn ChargingOnce>> {
        self.charging_once.as_ref()
    }

    /// The limiter, if its server keeps bans and debts.
    pub(crate) const fn keeps_standing(&self) -> Option<&Arc<dyn KeepsStanding>> {
        self.keeps_standing.as_ref()
    }

    /// The limiter, if it enters credits or charges by hand itself.
    pub(crate) const fn adjusts(&self) -> Option<&Arc<dyn Adjusting>> {
        self.adjusting.as_ref()
    }

    /// Whether its keys keep the units that are credited to them.
    pub(crate) fn keeps_credits(&self) -> bool {
        self.adjusting.as_ref().is_some_and(|limiter| limiter.keeps_credits())
    }

    /// The limiter, if its server passes reports between processes.
    pub(crate) fn shares_reports(&self) -> Option<&dyn SharesReports> {
        self.shares_reports.as_deref()
    }
}

/// The work that a limiter may leave to do after an admission.
pub(crate) struct Lasting {
    /// The request gives its units back when it is over.
    pub(crate) holds: bool,
    /// The limiter learns how the request ends.
    pub(crate) sheds: bool,
}

/// The bit of a mode in `modes`: there are fewer than eight.
const fn bit(mode: Mode) -> u8 {
    1 << mode as u8
}

const _: () = assert!((Mode::Reset as u8) < 8, "the last mode has a bit");

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Description")
            .field("terms", &self.terms)
            .field("max_cost", &self.max_cost)
            .field("delays", &self.delays)
            .finish_non_exhaustive()
    }
}
