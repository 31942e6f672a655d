//! The tables and keys of the file, parsed but not yet checked.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawConfig {
    pub(super) client_ip: Option<Spanned<RawClientIp>>,
    pub(super) redis: Option<Spanned<RawRedis>>,
    pub(super) response: Option<Spanned<RawResponse>>,
    #[serde(default)]
    pub(super) route: Vec<RawRoute>,
}

#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawClientIp {
    pub(super) source: Option<Spanned<String>>,
    pub(super) trusted: Option<Spanned<Vec<String>>>,
    pub(super) hops: Option<Spanned<i64>>,
    pub(super) ipv6_prefix: Option<Spanned<i64>>,
}

#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(super) struct RawRedis {
    pub(super) url: Spanned<OneOrMany>,
    pub(super) master: Option<String>,
    pub(super) timeout: Option<Spanned<String>>,
    pub(super) prefix: Option<Spanned<String>>,
    pub(super) secret: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawResponse {
    pub(super) fields: Option<FieldsName>,
    pub(super) x_ratelimit: Option<ResetName>,
    pub(super) advertise: Option<Spanned<String>>,
    pub(super) rejection_format: Option<RejectionFormatName>,
    pub(super) grpc_status: Option<GrpcStatusName>,
    pub(super) retry_jitter: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawRoute {
    pub(super) path: Spanned<OneOrMany>,
    pub(super) response: Option<Spanned<RawResponse>>,
    pub(super) exempt_preflights: Option<Spanned<RawBudget>>,
    pub(super) exempt: Option<Spanned<RawExempt>>,
    #[serde(default)]
    pub(super) policy: Vec<RawPolicy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawPolicy {
    pub(super) name: Spanned<String>,
    pub(super) algorithm: AlgorithmName,
    pub(super) limit: Spanned<i64>,
    pub(super) per: Option<Spanned<String>>,
    pub(super) zone: Option<Spanned<String>>,
    pub(super) anchor: Option<Spanned<i64>>,
    pub(super) week_start: Option<Spanned<WeekdayName>>,
    pub(super) burst: Option<Spanned<i64>>,
    pub(super) max_queue: Option<Spanned<i64>>,
    pub(super) max_wait: Option<Spanned<String>>,
    pub(super) max_keys: Option<Spanned<i64>>,
    pub(super) lease: Option<Spanned<String>>,
    pub(super) when_full: Option<Spanned<WhenFullName>>,
    pub(super) staggered: Option<Spanned<bool>>,
    pub(super) key: Option<Spanned<OneOrMany>>,
    pub(super) cost: Option<Spanned<i64>>,
    #[serde(default)]
    pub(super) shadow: bool,
    pub(super) store: Option<Spanned<StoreName>>,
    pub(super) on_failure: Option<OnFailure>,
    pub(super) on_missing_key: Option<OnMissingKey>,
    pub(super) status: Option<Spanned<i64>>,
    pub(super) charge_when: Option<Spanned<Vec<i64>>>,
    pub(super) settle_by: Option<Spanned<SettleByName>>,
    pub(super) owe_shortfalls: Option<Spanned<bool>>,
    pub(super) release_at: Option<Spanned<ReleaseName>>,
    pub(super) penalty: Option<RawPenalty>,
    pub(super) charge_once: Option<RawChargeOnce>,
    pub(super) exempt: Option<Spanned<RawExempt>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawPenalty {
    pub(super) rejections: Spanned<i64>,
    pub(super) per: Spanned<String>,
    pub(super) ban: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawChargeOnce {
    pub(super) header: Spanned<String>,
    pub(super) within: Spanned<String>,
    pub(super) free_retries: Spanned<i64>,
    pub(super) max_keys: Option<Spanned<i64>>,
}

/// The requests that a policy, or all policies of a route, do not charge.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawExempt {
    pub(super) networks: Option<Spanned<Vec<String>>>,
    pub(super) headers: Option<Spanned<RawHeaders>>,
    pub(super) paths: Option<Spanned<Vec<String>>>,
}

/// Headers and their values, which are secrets.
#[derive(Deserialize)]
#[serde(try_from = "BTreeMap<String, OneOrMany>")]
pub(super) struct RawHeaders(pub(super) BTreeMap<String, OneOrMany>);

impl TryFrom<BTreeMap<String, OneOrMany>> for RawHeaders {
    type Error = &'static str;

    /// Rejects a date, which the parser reads as a table with such a key.
    fn try_from(headers: BTreeMap<String, OneOrMany>) -> Result<Self, Self::Error> {
        if headers.keys().any(|name| name.starts_with("$__toml")) {
            Err("a date is no table")
        } else {
            Ok(Self(headers))
        }
    }
}

/// The budget of preflights that are exempt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct RawBudget {
    pub(super) limit: Spanned<i64>,
    pub(super) per: Spanned<String>,
    pub(super) burst: Option<Spanned<i64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) enum FieldsName {
    #[serde(rename = "draft-11")]
    Draft11,
    #[serde(rename = "draft-07")]
    Draft07,
    #[serde(rename = "none")]
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ResetName {
    EpochSeconds,
    DeltaSeconds,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RejectionFormatName {
    Problem,
    Text,
    Empty,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum GrpcStatusName {
    ResourceExhausted,
    Unavailable,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WhenFullName {
    Reject,
    Overflow,
    EvictLeast,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AlgorithmName {
    TokenBucket,
    LeakyBucket,
    LeakyQueue,
    FixedWindow,
    SlidingWindow,
    Concurrency,
}

/// What settles a charge once the response has ended.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SettleByName {
    Handler,
    ContentBytes,
}

/// When a request in flight is over.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ReleaseName {
    Head,
    Body,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(not(feature = "calendar"), allow(dead_code))]
pub(super) enum WeekdayName {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StoreName {
    Memory,
    Redis,
}

#[derive(Clone, Copy, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OnFailure {
    #[default]
    LocalFallback,
    Allow,
    Reject,
}

#[derive(Clone, Copy, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OnMissingKey {
    #[default]
    Reject,
    Skip,
    Share,
}

#[derive(Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}
