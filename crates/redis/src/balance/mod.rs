//! Balances that many processes share, on Redis. `limiter` asks, and `script` makes the calls and reads the replies.

mod limiter;
mod script;

pub use self::limiter::RedisBalance;
