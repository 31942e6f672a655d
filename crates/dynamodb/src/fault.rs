//! [`DynamoFault`]: why DynamoDB gave no decision.

use std::error::Error;
use std::fmt;

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};
use tower_sluice::LimiterError;
use tower_sluice::store::remote::{Fault, KindOfFault};

/// Why DynamoDB gave no decision. It is never a rejection. It is the [source](Error::source) of a [`LimiterError`].
pub type DynamoFault = Fault<FaultKind>;

/// The cause of a [`DynamoFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// We could not send the request, or its connection ended before the answer came. DynamoDB may have carried it out.
    Unreachable,
    /// No answer in time. DynamoDB may have carried out the request.
    TimedOut,
    /// The calling task was cancelled, because its runtime was shut down, or it panicked. DynamoDB may have carried out
    /// the call.
    Cancelled,
    /// No call was made, because DynamoDB kept failing: the circuit breaker is open.
    BreakerOpen,
    /// No call was made, because too many were in flight.
    TooManyInFlight,
    /// The table, one of its partitions, or the account has used up its capacity.
    Throttled,
    /// An error in the service itself.
    Unavailable,
    /// The item is part of a transaction or a replication by another client.
    Conflict,
    /// Other processes changed the item each time before it was written, until too little time was left. Nothing was
    /// charged.
    Contention,
    /// The table does not exist.
    NoTable,
    /// The credentials are missing, wrong or expired, or do not allow the action.
    Unauthorized,
    /// DynamoDB does not accept the request: the table has another key than `k`, or the client is misconfigured.
    Misconfigured,
    /// This machine's clock differs from DynamoDB's by more than a second and the round trip.
    WrongClock,
    /// The answer cannot be read.
    Unintelligible,
    /// Another program has written the key's item.
    ForeignItem,
    /// Called from outside a Tokio runtime.
    NoRuntime,
    /// DynamoDB gave an error that has no kind of its own.
    Other,
}

impl FaultKind {
    /// A short name, such as `timeout`, for a metric's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.names().0
    }

    /// The label, and the message for people.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Unreachable => ("unreachable", "DynamoDB cannot be reached"),
            Self::TimedOut => ("timed-out", "DynamoDB did not answer in time"),
            Self::Cancelled => ("cancelled", "the call to DynamoDB was cancelled"),
            Self::BreakerOpen => ("breaker-open", "DynamoDB was not called, because it kept failing"),
            Self::TooManyInFlight => {
                ("too-many-in-flight", "DynamoDB was not called, because too many calls were in flight")
            }
            Self::Throttled => ("throttled", "DynamoDB throttles the table; raise its capacity, or lease more units"),
            Self::Unavailable => ("unavailable", "DynamoDB has an internal error"),
            Self::Conflict => ("conflict", "another transaction holds the item"),
            Self::Contention => ("contention", "other processes changed the item each time before it was written"),
            Self::NoTable => ("no_table", "the table does not exist; create it, or call `Dynamo::create_table`"),
            Self::Unauthorized => ("unauthorized", "the credentials do not allow this"),
            Self::Misconfigured => ("misconfigured", "DynamoDB does not take the request"),
            Self::WrongClock => ("wrong_clock", "the clock of this machine is wrong; synchronise it"),
            Self::Unintelligible => ("unintelligible", "DynamoDB gave an answer that cannot be read"),
            Self::ForeignItem => ("foreign_item", "an item of another program has our key"),
            Self::NoRuntime => ("no_runtime", "DynamoDB can only be called from within a Tokio runtime"),
            Self::Other => ("other", "DynamoDB gave an error"),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names().1)
    }
}

impl KindOfFault for FaultKind {
    const TIMED_OUT: Self = Self::TimedOut;
    const CANCELLED: Self = Self::Cancelled;
    const BREAKER_OPEN: Self = Self::BreakerOpen;
    const TOO_MANY_IN_FLIGHT: Self = Self::TooManyInFlight;
    const NO_RUNTIME: Self = Self::NoRuntime;
    const UNINTELLIGIBLE: Self = Self::Unintelligible;
    const CONTENTION: Self = Self::Contention;

    fn blames_server(self) -> bool {
        !matches!(self, Self::ForeignItem | Self::Contention)
    }
}

/// An error from the SDK or from the service.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn of_request<E>(error: SdkError<E, HttpResponse>) -> DynamoFault
where
    E: ProvideErrorMetadata + Error + 'static,
{
    DynamoFault::new(kind_of(&error), detail_of(&error))
}

/// Part of a request is missing.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn of_part(error: BuildError) -> DynamoFault {
    DynamoFault::new(FaultKind::Misconfigured, error.to_string())
}

/// Returns DynamoDB's message for an error or, without one, the SDK's message with its causes. Leaves out the response,
/// which may be long.
fn detail_of<E: ProvideErrorMetadata + Error + 'static>(error: &SdkError<E, HttpResponse>) -> String {
    let service = error.as_service_error();
    if let Some(code) = service.and_then(ProvideErrorMetadata::code) {
        let message = service.and_then(ProvideErrorMetadata::message).unwrap_or("no message");
        return format!("{code}: {message}");
    }
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |detail, cause| format!("{detail}: {cause}"))
}

fn kind_of<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> FaultKind {
    match error {
        SdkError::TimeoutError(_) => FaultKind::TimedOut,
        SdkError::DispatchFailure(failure) if failure.is_timeout() => FaultKind::TimedOut,
        SdkError::DispatchFailure(failure) if failure.is_user() => FaultKind::Misconfigured,
        SdkError::DispatchFailure(_) => FaultKind::Unreachable,
        SdkError::ConstructionFailure(_) => FaultKind::Misconfigured,
        SdkError::ResponseError(_) => FaultKind::Unintelligible,
        SdkError::ServiceError(error) => {
            let status = error.raw().status();
            match error.err().code().map_or(FaultKind::Other, kind_of_code) {
                FaultKind::Other if status.is_server_error() => FaultKind::Unavailable,
                // This answer is not from DynamoDB.
                FaultKind::Other if status.is_success() => FaultKind::Unintelligible,
                kind => kind,
            }
        }
        _ => FaultKind::Other,
    }
}

/// Classifies the error codes of DynamoDB and of the services in front of it.
fn kind_of_code(code: &str) -> FaultKind {
    match code {
        "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "ThrottlingException"
        | "Throttling"
        | "LimitExceededException" => FaultKind::Throttled,
        "ResourceNotFoundException" | "TableNotFoundException" => FaultKind::NoTable,
        "AccessDeniedException"
        | "ExpiredTokenException"
        | "IncompleteSignatureException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException"
        | "UnrecognizedClientException" => FaultKind::Unauthorized,
        "InternalServerError" | "ServiceUnavailable" | "ServiceUnavailableException" => FaultKind::Unavailable,
        "TransactionConflictException" | "ReplicatedWriteConflictException" => FaultKind::Conflict,
        "ValidationException" | "SerializationException" | "ResourceInUseException" => FaultKind::Misconfigured,
        _ => FaultKind::Other,
    }
}

/// Wraps a fault into a limiter's error, with the fault as its source.
pub(crate) fn failed(fault: impl Into<DynamoFault>) -> LimiterError {
    fault.into().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttles_have_their_own_kind() {
        let codes = ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"];
        assert!(codes.iter().all(|code| kind_of_code(code) == FaultKind::Throttled));
        assert_eq!(kind_of_code("AccessDeniedException"), FaultKind::Unauthorized);
        assert_eq!(kind_of_code("SomethingNew"), FaultKind::Other);
    }

    #[test]
    fn a_fault_is_the_limiter_errors_source() {
        let error = failed(DynamoFault::new(FaultKind::NoTable, "limits"));
        let fault = error.source().and_then(|source| source.downcast_ref::<DynamoFault>());
        let text = fault.map(ToString::to_string).unwrap_or_default();
        assert!(text.ends_with("`Dynamo::create_table`: limits") && !error.to_string().contains("limits"), "{error}");
        assert_eq!(fault.map(DynamoFault::kind), Some(FaultKind::NoTable));
    }
}
