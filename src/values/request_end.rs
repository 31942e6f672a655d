//! `RequestEnd`: how a request that held units is over.

/// How a request that held units is over, for limiters that [learn](crate::Limiter::release) from it.
///
/// Complete by definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)]
pub enum RequestEnd {
    /// It was served. In a layer: the body of its response has ended, and the response does not report that the server
    /// failed (a status below 500; in gRPC, a status for which the server is not to blame).
    #[default]
    Served,
    /// The server has failed: a status from 500 on, an error from the inner service or the body.
    Failed,
    /// It was dropped before it had a response: the client has disconnected, or has waited for too long.
    Abandoned,
    /// It was dropped before its body ended, as happens to streams whose clients leave.
    CutOff,
}
