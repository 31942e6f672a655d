//! Rejections, and their responses in plain HTTP and gRPC.

mod grpc;
#[cfg(feature = "axum")]
mod handlers;
mod problem;
mod rejection;
mod responder;

pub use self::rejection::Rejection;
pub use self::responder::RejectionFormat;
pub(crate) use self::responder::Responder;
pub use crate::engine::reason::Reason;
