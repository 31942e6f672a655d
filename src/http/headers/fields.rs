//! `RateLimitFields`: which fields advertise the remaining quota, and on which responses.

use crate::util::keyed_hash::Secret;

/// Selects the fields that advertise the remaining quota, and the responses that carry them.
///
/// There is one constructor per field generation. Generations share names but not syntax, so a response can have only
/// one generation's fields. You can add `X-RateLimit-*` to any.
///
/// ```
/// use tower_sluice::headers::{Advertise, RateLimitFields, ResetForm};
///
/// // What GitHub sends, and the current draft, once less than a fifth is left.
/// const FIELDS: RateLimitFields =
///     RateLimitFields::draft11().x_ratelimit(ResetForm::EpochSeconds).advertise(Advertise::Below { percent: 20 });
/// ```
///
/// All fields follow Internet-Drafts or common practice, because there is no standard yet, and the next draft may
/// change names and syntax. Clients obey `Retry-After`.
#[derive(Clone, Copy, Debug)]
#[must_use]
#[doc(alias("X-RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"))]
pub struct RateLimitFields {
    pub(super) generation: Generation,
    /// The form of `X-RateLimit-Reset`, if `X-RateLimit-*` are sent.
    pub(super) x_ratelimit: Option<ResetForm>,
    pub(super) advertise: Advertise,
    pub(super) partition: Partition,
}

/// The syntax of `RateLimit` and `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    Draft11,
    Draft07,
    /// The fields are not sent.
    None,
}

/// Whether draft-11's `RateLimit` has a `pk`, and with which secret.
#[derive(Clone, Copy, Debug)]
pub(super) enum Partition {
    Hidden,
    PerProcess,
    Keyed(Secret),
}

/// How `X-RateLimit-Reset` gives the time at which a key has its full quota again. There is no default, because both
/// forms are in use under the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetForm {
    /// Seconds since 1970, by the system's clock, rounded up: GitHub, Laravel, Flask-Limiter.
    EpochSeconds,
    /// Seconds from now, rounded up: Envoy, Reddit.
    DeltaSeconds,
}

/// Which responses carry the fields, if a policy decided on their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Advertise {
    /// All.
    #[default]
    Always,
    /// Rejections by an advertised policy.
    Rejected,
    /// Rejections, and responses where an advertised policy has less left than this share of a fresh key's burst.
    Below {
        /// 0 to 100. A greater one counts as [`Always`](Self::Always).
        percent: u8,
    },
    /// None.
    Never,
}

impl RateLimitFields {
    const fn in_generation(generation: Generation) -> Self {
        Self { generation, x_ratelimit: None, advertise: Advertise::Always, partition: Partition::Hidden }
    }

    /// Sends `RateLimit-Policy` and `RateLimit` in the syntax of draft-ietf-httpapi-ratelimit-headers-11 (unchanged
    /// since -08), with all policies, by name. The default.
    ///
    /// ```text
    /// ratelimit-policy: "per-client";q=10;w=1, "daily";q=5000;w=86400
    /// ratelimit: "per-client";r=7;t=1, "daily";r=4711;t=81407
    /// ```
    ///
    /// A policy that does not apply to the request is not listed, because its [condition](crate::Policy::when) does not
    /// hold, because it [exempts](crate::Policy::exempt) the request, or because it [skips](crate::MissingKey::Skip)
    /// requests without a key. In that case the list is made for the response, with one or two more allocations.
    ///
    /// The two fields have 3 KiB at most, because clients and proxies refuse a longer head. That is enough for some 15
    /// policies with 64-character names, or 30 with eight-character names. Policies behind these are enforced, but not
    /// listed.
    ///
    /// `r` is the number of units left, and `t` the number of seconds for which they have to suffice, so a client that
    /// spreads `r` requests evenly over `t` seconds is not rejected. (There are two exceptions: a fixed window's `t` is
    /// its end, and a quota that does not fit a window in whole seconds is rounded down.) If a policy rejects, its `r`
    /// is 0 and its `t` is the wait, without any [jitter](crate::layer::RateLimitLayerBuilder::retry_jitter). If no
    /// wait helps, there is no `t`.
    ///
    /// If an inner layer or service has set these fields, ours are appended to theirs. If two policies have one name,
    /// the one with less left is advertised, once. Fields in another syntax, such as [`draft07`](Self::draft07), cannot
    /// share a list with ours. If they can be read and advertise more than all ours, ours replace them. Otherwise, ours
    /// are left out.
    pub const fn draft11() -> Self {
        Self::in_generation(Generation::Draft11)
    }

    /// Sends `RateLimit-Policy: 100;w=60` and `RateLimit: limit=100, remaining=50, reset=5`, in the syntax of
    /// draft-ietf-httpapi-ratelimit-headers-07, for the policy that is closest to exhaustion. That is the rejecting
    /// policy with the longest wait, or, if no policy rejects, the policy with the smallest share of a fresh key's
    /// burst left.
    ///
    /// `remaining` and `reset` are the `r` and `t` in [`draft11`](Self::draft11). If no wait helps, `reset` is the time
    /// until the key has its full quota again.
    pub const fn draft07() -> Self {
        Self::in_generation(Generation::Draft07)
    }

    /// Does not send `RateLimit` and `RateLimit-Policy`.
    pub const fn none() -> Self {
        Self::in_generation(Generation::None)
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, for the policy that is [closest to
    /// exhaustion](Self::draft07). These are a fresh key's burst, the remaining units, and the time at which the key
    /// has its full quota again.
    pub const fn x_ratelimit(self, reset: ResetForm) -> Self {
        Self { x_ratelimit: Some(reset), ..self }
    }

    /// Sets which responses carry the fields. [`Advertise::Always`] unless set.
    pub const fn advertise(self, on: Advertise) -> Self {
        Self { advertise: on, ..self }
    }

    /// Adds `pk` to the members in draft-11's `RateLimit`. It is a hash of the partition key with this process's secret
    /// (8 bytes from SipHash-2-4), by which a client can distinguish its budgets.
    ///
    /// Left out if the response's own fields let a shared cache store it, which are `public` and `s-maxage`, or
    /// `max-age`, `Expires`, `ETag` or `Last-Modified` without `private` or `no-store`. A cache that stores responses
    /// without these, as some do by default, would send one client's hash to another.
    pub const fn partition_key(self) -> Self {
        Self { partition: Partition::PerProcess, ..self }
    }

    /// Adds [`pk`](Self::partition_key) with your own secret, so that all processes with this secret send the same
    /// hashes. Keep it from clients, because without the secret, nobody can find a key by trying all keys.
    pub const fn partition_key_by(self, secret: [u8; 16]) -> Self {
        Self { partition: Partition::Keyed(Secret::from_bytes(secret)), ..self }
    }
}

impl Default for RateLimitFields {
    /// Returns [`RateLimitFields::draft11`], on all responses.
    fn default() -> Self {
        Self::draft11()
    }
}
