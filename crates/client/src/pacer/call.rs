//! One call, over all its attempts: sent when it is its turn, and sent again if the partner rejected it.

use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::error::{CallRefusal, LineRejection, PacerError};
use super::fields::{self, ResponseReading};
use super::line::{Departed, JoinedLine, LineTicket, PartnerLine, PlaceInLine};
use super::meter::CallResult;
use super::pace::{CallAnswer, CallReport};
use super::partners::{PartnerKey, Partners};

/// A client that sends requests with the type `Q`.
pub(super) trait Client<Q> {
    type Response: ResponseHead;
    type Error;

    /// Copies a request, if it can be copied.
    fn copy(&self, request: &Q) -> Option<Q>;

    /// Returns the line of the partner that answered, if the response says which one did.
    fn answered_by(&self, _: &Self::Response) -> Option<Arc<PartnerLine>> {
        None
    }

    /// Waits until another request can be sent. The first one can.
    fn ready(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    fn send(&mut self, request: Q) -> impl Future<Output = Result<Self::Response, Self::Error>> + Send;
}

pub(super) trait ResponseHead {
    fn head(&self) -> (StatusCode, &HeaderMap);
}

/// A call that has joined its line.
pub(super) struct PacedCall {
    line: Arc<PartnerLine>,
    ticket: LineTicket,
    runtime: Handle,
    /// `None` while the call is under way.
    next: Option<NextTurn>,
    attempt: Attempt,
    attempts_left: u32,
    /// The departure in the line of the partner that rejected the call after a redirect.
    redirected: Option<Departed>,
}

/// The turn that a call waits for.
enum NextTurn {
    InLine(JoinedLine),
    /// A turn at the partner that rejected it after a redirect, and then one in its own line.
    AtOther(PlaceInLine),
}

impl Partners {
    /// Lets a call join its partner's line.
    pub(super) fn join(&self, key: &PartnerKey) -> Result<PacedCall, CallRefusal> {
        let runtime = Handle::try_current().map_err(|_| CallRefusal::NoRuntime)?;
        let line = self.line(key);
        line.admit()?;
        let mut attempt = line.attempt();
        let attempts_left = self.common.attempts;
        match line.join(&runtime) {
            Ok((joined, ticket)) => {
                let next = Some(NextTurn::InLine(joined));
                Ok(PacedCall { line, ticket, runtime, next, attempt, attempts_left, redirected: None })
            }
            Err(rejection) => {
                attempt.ended(rejection.result());
                Err(rejection.into())
            }
        }
    }
}

impl PacedCall {
    pub(super) async fn send<Q, C: Client<Q>>(
        mut self,
        mut request: Q,
        mut client: C,
    ) -> Result<C::Response, PacerError<C::Error>> {
        loop {
            let mut departed = match self.depart().await {
                Ok(departed) => departed,
                Err(rejection) => {
                    self.attempt.ended(rejection.result());
                    return Err(CallRefusal::from(rejection).into());
                }
            };
            let copy = if self.attempts_left > 1 { client.copy(&request) } else { None };
            departed.sent_now();
            self.attempt.sent();
            let response = match client.send(request).await {
                Ok(response) => response,
                Err(error) => {
                    self.attempt.ended(CallResult::Failed);
                    return Err(PacerError::Service(error));
                }
            };
            let answered_by = client.answered_by(&response);
            if !self.take_in(departed, response.head(), answered_by, copy.is_some()) {
                return Ok(response);
            }
            let Some(copy) = copy else { return Ok(response) };
            self.attempt = self.line.attempt();
            drop(response);
            // The first service was ready already. For a further call, it has to become ready again. Until then, nobody
            // polls the place in line, so if its turn comes, others are called.
            client.ready().await.map_err(PacerError::Service)?;
            request = copy;
        }
    }

    /// Waits for its turn.
    async fn depart(&mut self) -> Result<Departed, LineRejection> {
        let joined = match self.next.take().expect("set when it joined, and before it is sent again") {
            NextTurn::InLine(joined) => joined,
            NextTurn::AtOther(place) => {
                self.redirected = Some(turn(place, Arc::clone(&self.line)).await?);
                JoinedLine::Waiting(self.line.rejoin(self.ticket, &self.runtime)?)
            }
        };
        match joined {
            JoinedLine::Departed(departed) => Ok(departed),
            JoinedLine::Waiting(place) => turn(place, Arc::clone(&self.line)).await,
        }
    }

    /// Processes an answer. Returns whether the call waits for another turn.
    fn take_in(
        &mut self,
        departed: Departed,
        (status, headers): (StatusCode, &HeaderMap),
        answered_by: Option<Arc<PartnerLine>>,
        has_copy: bool,
    ) -> bool {
        let other = answered_by.filter(|line| !Arc::ptr_eq(line, &self.line));
        let reading = fields::read(status, headers, SystemTime::now(), &self.line.common.statuses);
        let is_news = self.report(departed, other.as_ref(), &reading);
        self.attempt.ended(reading.result);
        if reading.result != CallResult::Rejected {
            return false;
        }
        let rejecting = other.as_ref().unwrap_or(&self.line);
        rejecting.log_pause();
        // Calls that left together before the line knew are rejected together. That uses up one attempt, for one call.
        self.attempts_left -= u32::from(is_news);
        if !has_copy {
            return false;
        }
        let ticket = if other.is_some() { rejecting.ticket(self.ticket.deadline) } else { self.ticket };
        let place = rejecting.admit().and_then(|()| rejecting.rejoin(ticket, &self.runtime));
        // If the partner keeps failing, or its pause is too long, the caller gets its response.
        let Ok(place) = place else { return false };
        self.next = Some(match other {
            Some(_) => NextTurn::AtOther(place),
            None => NextTurn::InLine(JoinedLine::Waiting(place)),
        });
        true
    }

    /// Reports an answer to the line of the partner that gave it. Returns whether that line learns about a rejection.
    fn report(&mut self, departed: Departed, other: Option<&Arc<PartnerLine>>, reading: &ResponseReading) -> bool {
        let redirected = self.redirected.take();
        let Some(other) = other else { return departed.answered(reading.report) };
        departed.answered(CallReport { answer: CallAnswer::Taken, ..CallReport::default() });
        self.attempt.redirected(other);
        match redirected.filter(|redirected| redirected.is_of(other)) {
            Some(redirected) => redirected.answered(reading.report),
            None => other.learn_redirected(reading.report),
        }
    }
}

async fn turn(place: PlaceInLine, line: Arc<PartnerLine>) -> Result<Departed, LineRejection> {
    let began = Instant::now();
    let departed = place.turn().await?;
    line.common.meter.waited(began.elapsed());
    Ok(departed)
}
