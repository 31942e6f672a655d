//! The response to a rejected gRPC or gRPC-Web request.

use http::Response;

use super::rejection::Rejection;
use crate::engine::reason::Reason;
use crate::engine::verdict::PolicyVerdict;
use crate::http::grpc::{Code, GrpcRetry, GrpcStatus, Protocol, Status, Violation};

/// Makes the response to a rejected request in `protocol`. `exceeded` is the layer's status if a limit is exceeded.
pub(super) fn response(rejection: &Rejection, exceeded: GrpcStatus, protocol: Protocol) -> Response<()> {
    // An overloaded server's limit is not the client's quota, and a suspended quota is not used up.
    let is_quota = !matches!(rejection.reason(), Reason::Overloaded | Reason::Suspended);
    let violations: Vec<_> = rejection.verdict().violated().filter(|_| is_quota).map(violation).collect();
    let status = Status {
        code: code_of(rejection, exceeded),
        message: &rejection.detail(),
        retry: rejection.retry(),
        violations: &violations,
    };
    status.response(protocol)
}

fn violation(violated: &PolicyVerdict) -> Violation<'_> {
    let left = violated.decision().remaining();
    let limit = violated.decision().limit();
    Violation { subject: violated.name(), description: format!("{left} of {limit} left") }
}

fn code_of(rejection: &Rejection, exceeded: GrpcStatus) -> Code {
    match rejection.reason() {
        // Many clients retry UNAVAILABLE by default, and no retry helps a request that costs too much.
        Reason::LimitExceeded if rejection.retry() == GrpcRetry::Never => Code::ResourceExhausted,
        Reason::LimitExceeded => exceeded.into(),
        // UNAVAILABLE also means a server outage, but a ban is the client's own doing.
        Reason::Banned | Reason::BannedByHand => Code::ResourceExhausted,
        // RESOURCE_EXHAUSTED would be wrong, because nothing is used up.
        Reason::Suspended => Code::PermissionDenied,
        Reason::Overloaded | Reason::LimiterFailed => Code::Unavailable,
        Reason::MissingKey | Reason::AmbiguousKey => Code::InvalidArgument,
        Reason::Misconfigured => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::*;
    use crate::algorithm::TokenBucket;
    use crate::engine::policy::Policy;
    use crate::engine::reason::Wait;
    use crate::engine::verdict::Verdict;
    use crate::http::key::KeyError;
    use crate::values::{LimiterError, Quota};

    #[test]
    fn each_reason_has_its_status_and_pushback() {
        let policy = Policy::new("policy", TokenBucket::new(Quota::per_second(1)));
        let short = Wait::After(Duration::from_millis(5));
        let exceeded = |wait| Rejection::limit_exceeded(StatusCode::TOO_MANY_REQUESTS, wait, Verdict::default());
        let banned = |wait| Rejection::banned(StatusCode::TOO_MANY_REQUESTS, wait, Verdict::default());
        let overloaded = |wait| Rejection::overloaded(StatusCode::SERVICE_UNAVAILABLE, wait, Verdict::default());
        let without_key = |error| Rejection::without_key(&error);
        let failed = |error| Rejection::limiter_failed(&policy, &error, Verdict::default());
        let what = "header x-api-key";
        // The statuses from a layer that answers RESOURCE_EXHAUSTED, and from a layer that answers UNAVAILABLE.
        for (rejection, statuses, pushback) in [
            (exceeded(short), ["8", "14"], Some("5")),
            (exceeded(Wait::Never), ["8", "8"], Some("-1")),
            (banned(short), ["8", "8"], Some("5")),
            (banned(Wait::Never), ["8", "8"], Some("-1")),
            (overloaded(Wait::Estimate(Duration::from_millis(5))), ["14", "14"], Some("5")),
            (overloaded(Wait::UnknownEstimate), ["14", "14"], None),
            (Rejection::suspended(StatusCode::FORBIDDEN, Verdict::default()), ["7", "7"], Some("-1")),
            (failed(LimiterError::new("lost")), ["14", "14"], Some("1000")),
            (failed(LimiterError::closed("closed")), ["14", "14"], Some("1000")),
            (without_key(KeyError::Missing { what: what.into() }), ["3", "3"], Some("-1")),
            (without_key(KeyError::Ambiguous { what: what.into() }), ["3", "3"], Some("-1")),
            (without_key(KeyError::Misconfigured { problem: "peer address unknown".into() }), ["13", "13"], Some("-1")),
        ] {
            for (exceeded, status) in [GrpcStatus::ResourceExhausted, GrpcStatus::Unavailable].into_iter().zip(statuses)
            {
                let response = response(&rejection, exceeded, Protocol::Grpc);
                let found = ["grpc-status", "grpc-retry-pushback-ms"]
                    .map(|name| response.headers().get(name).map(|value| value.to_str().unwrap()));
                assert_eq!(found, [Some(status), pushback], "{rejection:?}");
            }
        }
    }
}
