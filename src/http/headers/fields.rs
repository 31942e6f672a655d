use crate::util::keyed_hash::Secret;

/// Which fields tell clients what is left, and when they are sent.
///
/// One constructor per generation of the fields. They share names and not their syntax, so that a
/// response can have those of one generation only; the `X-RateLimit-*` family goes with any.
///
/// ```
/// use tower_sluice::headers::{RateLimitFields, ResetForm, Tell};
///
/// // What GitHub sends, and the current draft, as soon as a fifth or less is left.
/// const FIELDS: RateLimitFields =
///     RateLimitFields::draft11().x_rate_limit(ResetForm::EpochSeconds).tell(Tell::Below { percent: 20 });
/// ```
///
/// All of them follow Internet-Drafts or habit: there is no standard yet, and the next draft may
/// change names and syntax. What clients obey is `Retry-After`.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RateLimitFields {
    pub(super) generation: Generation,
    /// Of `X-RateLimit-*`, if they are sent.
    pub(super) legacy: Option<ResetForm>,
    pub(super) tell: Tell,
    pub(super) partition: Partition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    Draft11,
    Draft07,
    None,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Partition {
    Untold,
    PerProcess,
    Keyed(Secret),
}

/// How `X-RateLimit-Reset` tells the time at which a key is as good as new. Both are in use and cannot
/// be told apart by the name, hence no default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetForm {
    /// Seconds since 1970, by the system's clock, rounded up: GitHub, Laravel, Flask-Limiter.
    EpochSeconds,
    /// Seconds from now, rounded up: Envoy, Reddit, Kong.
    DeltaSeconds,
}

/// On which responses the fields are sent, of those that a policy judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Tell {
    /// On all.
    #[default]
    Always,
    /// On refusals by a policy that is advertised.
    Refused,
    /// On such refusals, and where such a policy has less left than so many percent of what a fresh key can take
    /// at once.
    Below {
        /// 0 to 100.
        percent: u8,
    },
    /// On none.
    Never,
}

impl RateLimitFields {
    const fn of(generation: Generation) -> Self {
        Self { generation, legacy: None, tell: Tell::Always, partition: Partition::Untold }
    }

    /// `RateLimit-Policy` and `RateLimit` in the syntax of draft-ietf-httpapi-ratelimit-headers-11 (the
    /// same since -08): all policies, by name. The default.
    ///
    /// ```text
    /// ratelimit-policy: "per-client";q=10;w=1, "daily";q=5000;w=86400
    /// ratelimit: "per-client";r=7;t=1, "daily";r=4711;t=81407
    /// ```
    ///
    /// `r` is what is left, and `t` the seconds for which it has to suffice: a client that spreads `r`
    /// requests over `t` seconds is not refused. After a refusal, `t` is `Retry-After`.
    ///
    /// Where a layer or a service further in has sent these fields, ours are appended to theirs. Of two policies of one name,
    /// the one with less left is told, once. Fields in another syntax, such as that of [`draft07`](Self::draft07), cannot stand
    /// in one list with ours: if they can be read and tell of more than all of ours, ours replace them, and otherwise ours
    /// are left out.
    pub const fn draft11() -> Self {
        Self::of(Generation::Draft11)
    }

    /// `RateLimit-Policy: 100;w=60` and `RateLimit: limit=100, remaining=50, reset=5`, in the syntax of
    /// draft-ietf-httpapi-ratelimit-headers-07: only the policy that is closest to exhaustion.
    ///
    /// `remaining` and `reset` are the `r` and `t` of [`draft11`](Self::draft11).
    pub const fn draft07() -> Self {
        Self::of(Generation::Draft07)
    }

    /// None of the fields named `RateLimit`.
    pub const fn none() -> Self {
        Self::of(Generation::None)
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the policy that is
    /// closest to exhaustion: what a fresh key can take at once, what is left of it, and when the key is
    /// as good as new.
    pub const fn x_rate_limit(mut self, reset: ResetForm) -> Self {
        self.legacy = Some(reset);
        self
    }

    /// When to send them; [`Tell::Always`] unless set.
    pub const fn tell(mut self, when: Tell) -> Self {
        self.tell = when;
        self
    }

    /// Adds `pk` to the members of draft-11's `RateLimit`, by a secret of this process: a hash of the
    /// partition key (8 bytes of SipHash-2-4), by which a client can tell its budgets apart.
    ///
    /// Left out where a cache that is shared might store the response.
    pub const fn partition_key(mut self) -> Self {
        self.partition = Partition::PerProcess;
        self
    }

    /// [`partition_key`](Self::partition_key) by a secret of your own, so that all processes that know
    /// it tell the same. Without the secret, nobody can find out a key by trying them all; keep it from
    /// clients.
    pub const fn partition_key_by(mut self, secret: [u8; 16]) -> Self {
        self.partition = Partition::Keyed(Secret::from_bytes(secret));
        self
    }
}

impl Default for RateLimitFields {
    /// [`RateLimitFields::draft11`], on all responses.
    fn default() -> Self {
        Self::draft11()
    }
}
