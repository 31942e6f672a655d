//! Reads the limits in other rate limit services' files, and selects the limits that apply to a request.
//!
//! A file is read into [`Domain`]s, which have [`Rule`]s. A domain selects the rules for a request's [`Descriptor`]s,
//! and a key for each rule. Nothing here limits or charges.

mod config_map;
pub(crate) mod envoy;
mod folder;
mod key;
mod kind;
pub(crate) mod limitador;
mod name;
mod unit;
mod yaml;

use std::fmt;
use std::time::Duration;

use tower_sluice::{PartitionKey, Quota};

pub(crate) use self::folder::files;
pub(crate) use self::key::joined;
pub(crate) use self::kind::{Kind, is_yaml, toml_file};
pub(crate) use self::name::BROUGHT;
pub(crate) use self::unit::Unit;

/// A descriptor in Envoy's protocol, version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// Keys and values, in order. A key may occur twice.
    pub(crate) entries: Vec<(String, String)>,
    /// Whether the request brings a limit for this descriptor, which replaces the file's limit.
    pub(crate) has_own_limit: bool,
}

impl Descriptor {
    /// Returns the budget key for all entries in the descriptor, for a limit that the request brings.
    pub(crate) fn key(&self) -> PartitionKey {
        let parts: Vec<&str> = self.entries.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]).collect();
        joined(&parts)
    }
}

/// The rules for the requests that name one domain, or one namespace.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
    pub(crate) select: Box<dyn Select>,
    pub(crate) charging: Charging,
    /// Whether a limit that a descriptor brings replaces the file's.
    pub(crate) takes_limits: bool,
    pub(crate) file: String,
    /// The first line in the file that names the domain.
    pub(crate) line: usize,
}

/// How to charge a request if one of its descriptors does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charging {
    /// Every descriptor decides and is charged by itself. A cost that does not fit uses up the rest of the limit,
    /// because the caller may have spent it already. envoyproxy/ratelimit does so.
    Each,
    /// Charge nothing. Limitador does so.
    AllOrNone,
}

/// A limit, and how rejections by it count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The name of a [`Policy`](tower_sluice::Policy), unique in the domain. It is made from keys and values, so it
    /// stays the same when the limit changes.
    pub(crate) name: String,
    /// The name that the file gives to the limit, for responses and metrics. Several rules may share it.
    pub(crate) label: Option<String>,
    /// Describes who has a separate budget.
    pub(crate) who: String,
    pub(crate) limit: Limit,
    /// Whether the rule only reports.
    pub(crate) is_shadow: bool,
    /// Whether a request is rejected only if *all* its rules with this flag reject it.
    pub(crate) is_quota: bool,
    /// The line where the rule begins.
    pub(crate) line: usize,
}

impl Rule {
    /// Describes in words how much the rule admits, and how other requests are treated.
    pub(crate) fn in_words(&self) -> (String, String) {
        let what = match self.limit {
            Limit::Unlimited => return ("no limit".to_owned(), "–".to_owned()),
            Limit::Zero { .. } => "nothing".to_owned(),
            Limit::Rate { quota, algorithm } => {
                let unit = Unit::from_period(quota.period()).map(Unit::name);
                let per = unit.map_or_else(|| format!("{:?}", quota.period()), str::to_owned);
                match algorithm {
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                        format!("{} at once, then {} per {per}", quota.max_burst(), quota.limit())
                    }
                    Algorithm::FixedWindow => format!("{} per {per}, in fixed windows", quota.limit()),
                    Algorithm::SlidingWindow => format!("{} within any {per}, about", quota.limit()),
                }
            }
        };
        let when_full = match (self.is_shadow, self.is_quota) {
            (true, _) => "counted only (a shadow)",
            (false, true) => "rejected if all other quotas of the request are full",
            (false, false) => "rejected",
        };
        (what, when_full.to_owned())
    }
}

/// How much a rule admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// All requests are admitted and not counted.
    Unlimited,
    /// All requests that cost anything are rejected. A [`Quota`] cannot be zero.
    Zero { period: Duration },
    /// The quota's burst is its limit, unless `algorithm` is a bucket.
    Rate { quota: Quota, algorithm: Algorithm },
}

/// A rule's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
}

/// Selects a domain's rules that apply to a request.
pub(crate) trait Select: fmt::Debug + Send + Sync {
    /// Selects rules, in the descriptors' order. An empty list of descriptors selects nothing.
    fn select(&self, descriptors: &[Descriptor]) -> Vec<Selected>;
}

/// A rule that applies to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// The index of the descriptor whose cost is charged.
    pub(crate) descriptor: usize,
    /// The rule's index in [`Domain::rules`].
    pub(crate) rule: usize,
    /// The values for which the rule has separate budgets. Keys for different rules may be equal.
    pub(crate) key: PartitionKey,
}
