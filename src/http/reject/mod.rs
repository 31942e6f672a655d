//! Rejections, and their responses in plain HTTP and gRPC.

mod grpc;
#[cfg(feature = "axum")]
mod handlers;
mod problem;
mod rejection;
mod responder;
mod shed_responses;
mod wait;

pub use self::rejection::{Reason, Rejection};
pub use self::responder::RejectionFormat;
pub(crate) use self::responder::Responder;
pub(crate) use self::shed_responses::{ForAnybody, ShedResponses, is_usual};
pub(crate) use self::wait::Wait;
