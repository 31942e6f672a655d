//! One call, over all its attempts: sent when its turn has come, and again if the partner rejected it.

use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::error::{CallRefusal, LineRejection, PacerError};
use super::fields::{self, ResponseReading};
use super::line::{JoinedLine, LineTicket, PartnerLine};
use super::meter::CallResult;
use super::partners::Partners;
use crate::values::PartitionKey;

/// A client that sends requests of the type `Q`.
pub(super) trait Client<Q> {
    type Response: ResponseHead;
    type Error;

    /// Copies a request, if it can be copied.
    fn copy(&self, request: &Q) -> Option<Q>;

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
    joined: JoinedLine,
    attempt: Attempt,
    attempts: u32,
}

impl Partners {
    /// Has a call join the line of its partner.
    pub(super) fn join(&self, key: &PartitionKey) -> Result<PacedCall, CallRefusal> {
        let runtime = Handle::try_current().map_err(|_| CallRefusal::NoRuntime)?;
        let line = self.line(key);
        line.admit()?;
        let attempt = line.attempt();
        match line.join(&runtime) {
            Ok((joined, ticket)) => {
                Ok(PacedCall { line, ticket, runtime, joined, attempt, attempts: self.common.attempts })
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
        self,
        mut request: Q,
        mut client: C,
    ) -> Result<C::Response, PacerError<C::Error>> {
        let Self { line, ticket, runtime, mut joined, mut attempt, attempts: mut attempts_left } = self;
        loop {
            let mut departed = match joined {
                JoinedLine::Departed(departed) => departed,
                JoinedLine::Waiting(place) => {
                    let began = Instant::now();
                    match place.turn().await {
                        Ok(departed) => {
                            line.common.meter.waited(began.elapsed());
                            departed
                        }
                        Err(rejection) => {
                            attempt.ended(rejection.result());
                            return Err(CallRefusal::from(rejection).into());
                        }
                    }
                }
            };
            attempts_left -= 1;
            let copy = if attempts_left > 0 { client.copy(&request) } else { None };
            departed.sent_now();
            attempt.sent();
            let response = match client.send(request).await {
                Ok(response) => response,
                Err(error) => {
                    attempt.ended(CallResult::Failed);
                    return Err(PacerError::Service(error));
                }
            };
            let (status, headers) = response.head();
            let ResponseReading { result, report } = fields::read(status, headers, SystemTime::now());
            departed.answered(report);
            attempt.ended(result);
            if result != CallResult::Rejected {
                return Ok(response);
            }
            line.log_pause();
            let Some(copy) = copy else { return Ok(response) };
            // The first service was ready already; for a further call, it has to become ready again. Until then nobody
            // polls the place in line, so others are called if its turn comes.
            match line.admit().and_then(|()| line.rejoin(ticket, &runtime)) {
                Ok(place) => joined = JoinedLine::Waiting(place),
                // The partner keeps failing, or its pause is too long: the caller gets its response.
                Err(
                    LineRejection::Throttled { .. }
                    | LineRejection::WaitTooLong { .. }
                    | LineRejection::LineFull { .. },
                ) => return Ok(response),
            }
            attempt = line.attempt();
            drop(response);
            client.ready().await.map_err(PacerError::Service)?;
            request = copy;
        }
    }
}
