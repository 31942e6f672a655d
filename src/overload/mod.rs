//! Overload: [`Overload`] bounds the requests in flight of a process by a limit that it finds itself.

mod limiter;

pub use self::limiter::Overload;
