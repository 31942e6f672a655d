//! The format: each table in a file with its keys, once. The structs that the parser fills, its advice, the numbers'
//! ranges, the JSON schema and the format page (`schema.json`, `format.toml`, which a test compares) are derived from
//! it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer};
use toml::Spanned;

use tower_sluice::MissingKey;
#[cfg(feature = "calendar")]
use tower_sluice::algorithm::Weekday;
use tower_sluice::grpc::GrpcStatus;
use tower_sluice::headers::{RateLimitFields, ResetForm};
use tower_sluice::limiter::Priority;
use tower_sluice::rejection::RejectionFormat;
use tower_sluice::store::WhenFull;
use tower_sluice::{FailureMode, Quota};

/// A table's key.
#[cfg_attr(not(test), allow(dead_code, reason = "some of it is for the schema and the page alone"))]
pub(crate) struct TableKey {
    /// With underscores for hyphens.
    name: &'static str,
    pub(crate) kind: KeyKind,
    /// A value, as TOML.
    pub(crate) example: &'static str,
    /// Its meaning, in sentences.
    pub(crate) about: &'static str,
    pub(crate) default: Option<&'static str>,
    pub(crate) is_required: bool,
    /// Whether the value must not be in any message.
    pub(crate) is_secret: bool,
    /// Whether the page shows it as a comment, because it does not go with the others there.
    pub(crate) is_aside: bool,
    /// Further members of the value's schema, as JSON.
    pub(crate) schema: &'static str,
}

/// The value that a key takes.
#[derive(Clone, Copy)]
#[cfg_attr(not(test), allow(dead_code, reason = "as above"))]
pub(crate) enum KeyKind {
    Text,
    /// A text, or a list of texts.
    Texts,
    Time,
    List,
    Flag,
    Words(fn() -> Vec<&'static str>),
    /// A number from the one to the other.
    Number(u64, u64),
    /// A table with the file's own keys, whose values follow this definition in the schema.
    Map(&'static str),
    /// A table with the file's own keys, whose values are inline tables of this kind.
    MapOf(&'static str),
    /// `[NAME]`, a table of this kind.
    Table(&'static str),
    /// `[[NAME]]`, tables of this kind.
    Tables(&'static str),
    /// An inline table of this kind.
    Inline(&'static str),
}

impl TableKey {
    const fn new(kind: KeyKind, example: &'static str, about: &'static str) -> Self {
        Self {
            name: "",
            kind,
            example,
            about,
            default: None,
            is_required: false,
            is_secret: false,
            is_aside: false,
            schema: "",
        }
    }

    const fn default(self, value: &'static str) -> Self {
        Self { default: Some(value), ..self }
    }

    const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    const fn aside(self) -> Self {
        Self { is_aside: true, ..self }
    }

    const fn schema(self, members: &'static str) -> Self {
        Self { schema: members, ..self }
    }

    /// Adds the name and the type of a struct's field.
    const fn named<T: Value>(self, name: &'static str) -> Self {
        Self { name, is_required: T::IS_REQUIRED, ..self }
    }

    pub(crate) fn name(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// Returns a key by its table's name and its own, such as `policy.max-wait`. A table has one meaning wherever it is.
pub(crate) fn field(name: &str) -> Option<&'static TableKey> {
    let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
    let (_, fields) = TABLES.iter().find(|(name, _)| *name == table)?;
    fields.iter().find(|field| field.name() == key)
}

/// A key's value, or its absence.
trait Value {
    const IS_REQUIRED: bool;

    fn is_set(&self) -> bool;
}

impl<T> Value for Option<T> {
    const IS_REQUIRED: bool = false;

    fn is_set(&self) -> bool {
        self.is_some()
    }
}

impl<T> Value for Spanned<T> {
    const IS_REQUIRED: bool = true;

    fn is_set(&self) -> bool {
        true
    }
}

impl<T> Value for Vec<T> {
    const IS_REQUIRED: bool = false;

    fn is_set(&self) -> bool {
        !self.is_empty()
    }
}

/// A type with a few words, one for each value.
pub(crate) trait NamedValues: Sized + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

/// One of the words for a `T`.
pub(crate) struct NamedValue<T: 'static>(&'static (&'static str, T));

impl<T: Clone> NamedValue<T> {
    pub(crate) fn value(self) -> T {
        self.0.1.clone()
    }
}

impl<T> Clone for NamedValue<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for NamedValue<T> {}

impl<T> PartialEq for NamedValue<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl<T> fmt::Debug for NamedValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.0)
    }
}

impl<'de, T: NamedValues> Deserialize<'de> for NamedValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let word = T::WORDS.iter().find(|(word, _)| *word == text);
        // `parser_errors` reports an error in the text, since it knows the words.
        word.map(Self).ok_or_else(|| serde::de::Error::custom("an unknown word"))
    }
}

impl<T: NamedValues> Value for NamedValue<T> {
    const IS_REQUIRED: bool = true;

    fn is_set(&self) -> bool {
        true
    }
}

fn words_of<T: NamedValues>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
}

macro_rules! words {
    ($($type:ty { $($word:literal: $value:expr),+ })+) => {
        $(impl NamedValues for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, $value)),+];
        })+
    };
}

words! {
    RateLimitFields {
        "draft-11": RateLimitFields::draft11(), "draft-07": RateLimitFields::draft07(), "none": RateLimitFields::none()
    }
    Option<ResetForm> {
        "epoch-seconds": Some(ResetForm::EpochSeconds), "delta-seconds": Some(ResetForm::DeltaSeconds), "none": None
    }
    RejectionFormat {
        "problem": RejectionFormat::Problem, "text": RejectionFormat::Text, "empty": RejectionFormat::Empty
    }
    GrpcStatus {
        "resource-exhausted": GrpcStatus::ResourceExhausted, "unavailable": GrpcStatus::Unavailable
    }
    AlgorithmName {
        "token-bucket": AlgorithmName::TokenBucket, "leaky-bucket": AlgorithmName::LeakyBucket,
        "leaky-queue": AlgorithmName::LeakyQueue, "slow-down": AlgorithmName::SlowDown,
        "fixed-window": AlgorithmName::FixedWindow,
        "sliding-window": AlgorithmName::SlidingWindow, "concurrency": AlgorithmName::Concurrency,
        "overload": AlgorithmName::Overload, "balance": AlgorithmName::Balance
    }
    Priority {
        "low": Priority::Low, "normal": Priority::Normal, "high": Priority::High, "critical": Priority::Critical
    }
    Weekday {
        "monday": Weekday::Monday, "tuesday": Weekday::Tuesday, "wednesday": Weekday::Wednesday,
        "thursday": Weekday::Thursday, "friday": Weekday::Friday, "saturday": Weekday::Saturday, "sunday": Weekday::Sunday
    }
    WhenFull {
        "reject": WhenFull::Reject, "overflow": WhenFull::Overflow, "evict-least": WhenFull::EvictLeast
    }
    FailureMode {
        "local-fallback": FailureMode::LocalFallback, "allow": FailureMode::Allow, "reject": FailureMode::Reject
    }
    MissingKey {
        "reject": MissingKey::Reject, "skip": MissingKey::Skip, "share": MissingKey::Share
    }
    SettleBy {
        "handler": SettleBy::Handler, "content-bytes": SettleBy::ContentBytes
    }
    ReleaseAt {
        "head": ReleaseAt::Head, "body": ReleaseAt::Body
    }
    ShownForm {
        "hash": ShownForm::Hash, "prefix": ShownForm::Prefix, "whole": ShownForm::Whole
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlgorithmName {
    TokenBucket,
    LeakyBucket,
    LeakyQueue,
    SlowDown,
    FixedWindow,
    SlidingWindow,
    Concurrency,
    Overload,
    Balance,
}

/// The measure that settles a charge once the response has ended.
#[derive(Clone, Copy)]
pub(crate) enum SettleBy {
    Handler,
    ContentBytes,
}

/// When a request in flight is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseAt {
    Head,
    Body,
}

/// How to show the keys that are rejected most.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownForm {
    Hash,
    Prefix,
    Whole,
}

/// For programs without the calendar, which reject its windows later.
#[cfg(not(feature = "calendar"))]
#[derive(Clone, Copy)]
pub(crate) enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The most units that a key may have in flight in memory: see [`Concurrency::new`](tower_sluice::Concurrency::new).
pub(crate) const MOST_IN_FLIGHT: u64 = (1 << 31) - 1;

const UNITS: KeyKind = KeyKind::Number(1, Quota::MAX_UNITS);
const COUNT: KeyKind = KeyKind::Number(1, u32::MAX as u64);

const fn text(example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(KeyKind::Text, example, about)
}

const fn texts(example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(KeyKind::Texts, example, about)
}

const fn time(example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(KeyKind::Time, example, about)
}

const fn list(example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(KeyKind::List, example, about)
}

const fn flag(about: &'static str) -> TableKey {
    TableKey::new(KeyKind::Flag, "true", about).default("false")
}

const fn word<T: NamedValues>(example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(KeyKind::Words(words_of::<T>), example, about)
}

const fn number(range: KeyKind, example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(range, example, about)
}

const fn inline(table: &'static str, example: &'static str, about: &'static str) -> TableKey {
    TableKey::new(KeyKind::Inline(table), example, about).aside()
}

macro_rules! tables {
    ($($(#[$of_struct:meta])* $struct:ident, $table:literal {
        $($(#[$of_field:meta])* $name:ident: $type:ty = $field:expr;)+
    })+) => {
        $($(#[$of_struct])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub(crate) struct $struct {
            $($(#[$of_field])* pub(crate) $name: $type,)+
        }

        impl TableKeys for $struct {
            fn optional(&self) -> Vec<&'static str> {
                let keys = [$((stringify!($name), !<$type>::IS_REQUIRED && self.$name.is_set())),+];
                keys.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
            }
        })+

        /// The tables with their keys, by the tables' names in those around them.
        pub(crate) const TABLES: &[(&str, &[TableKey])] =
            &[$(($table, &[$($field.named::<$type>(stringify!($name))),+])),+];
    };
}

/// A table in a file.
pub(crate) trait TableKeys {
    /// Returns the keys that are set and need not be, with underscores for hyphens.
    fn optional(&self) -> Vec<&'static str>;
}

tables! {
    RawConfig, "" {
        client_ip: Option<Spanned<RawClientIp>> = TableKey::new(
            KeyKind::Table("client-ip"), "",
            "How to find a client's address. If you leave this table out, it is the address of the connection's peer.");
        redis: Option<Spanned<RawRedis>> = TableKey::new(
            KeyKind::Table("redis"), "",
            "The Redis server that keeps the budgets of policies, so that several processes share them. A policy with \
             another `store` does not use it.");
        store: Option<Spanned<RawStores>> = TableKey::new(
            KeyKind::Map("stores"), "{ pg = { kind = \"postgres\", url = \"postgres://limits@127.0.0.1/limits\" } }",
            "More stores for budgets, each in a table [store.NAME]. Its `kind` says which program keeps the budgets, \
             and the other keys depend on the kind. If you leave `kind` out, it is NAME. A policy chooses a store by \
             NAME.")
            .secret().aside();
        snapshot: Option<Spanned<RawSnapshot>> = TableKey::new(
            KeyKind::Table("snapshot"), "",
            "A file that keeps the budgets in memory, and the bans, across a restart.");
        response: Option<Spanned<RawResponse>> = TableKey::new(
            KeyKind::Table("response"), "",
            "What the responses to clients contain.");
        #[serde(default)]
        route: Vec<RawRoute> = TableKey::new(
            KeyKind::Tables("route"), "",
            "A group of paths that share their policies and budgets. A file has at least one route.")
            .schema("\"minItems\": 1");
    }

    #[derive(Clone, PartialEq)]
    RawClientIp, "client-ip" {
        source: Option<Spanned<String>> = text("\"x-forwarded-for\"",
            "Where a client's address is: in the connection (peer), in the header x-forwarded-for or forwarded, or in \
             another header that has a single address, such as x-real-ip. Upper and lower case do not matter.")
            .default("\"peer\"");
        trusted: Option<Spanned<Vec<String>>> = list("[\"10.0.0.0/8\"]",
            "The networks of your proxies. If a request comes from any other peer, its header is ignored.")
            .schema("\"items\": { \"type\": \"string\" }");
        hops: Option<Spanned<i64>> = number(KeyKind::Number(1, 100), "1",
            "The number of your proxies in front of this server. Write it instead of `trusted` or in addition to it.");
        ipv6_prefix: Option<Spanned<i64>> = number(KeyKind::Number(32, 128), "64",
            "The length of an IPv6 prefix, in bits. All addresses with the same prefix count as one client.")
            .default("64");
    }

    #[derive(Clone, PartialEq)]
    RawRedis, "redis" {
        url: Spanned<OneOrMany> = texts("\"redis://127.0.0.1:6379\"",
            "The address of the server. For a cluster, write a list of some of its nodes. For a master with sentinels, \
             write a list of the sentinels.").secret();
        master: Option<String> = text("\"main\"",
            "For a list of sentinels: the name that they have for the master.")
            .secret().aside();
        timeout: Option<Spanned<String>> = time("\"50ms\"",
            "The longest time for a decision on the server. After this time, `on-failure` decides.")
            .default("\"50ms\"");
        prefix: Option<Spanned<String>> = text("\"sluice\"",
            "The text that all key names on the server begin with.")
            .default("\"sluice\"")
            .schema("\"pattern\": \"^[^{}]*$\"");
        secret: Option<String> = text("\"...\"",
            "A secret text that goes into the hashes by which the server knows clients. All processes that share \
             budgets need the same secret.")
            .secret().aside();
    }

    #[derive(Clone, PartialEq)]
    RawSnapshot, "snapshot" {
        path: Spanned<String> = text("\"/var/lib/server/limits.snapshot\"",
            "The path of the file. Its folder must exist. Each process needs its own file. Only the file's owner can \
             read it.")
            .schema("\"minLength\": 1");
        every: Option<Spanned<String>> = time("\"10s\"",
            "The time between two writes, 100ms or more. The file is also written when the server stops.")
            .default("\"10s\"");
    }

    #[derive(Clone, Debug, PartialEq)]
    RawResponse, "response" {
        fields: Option<NamedValue<RateLimitFields>> = word::<RateLimitFields>("\"draft-11\"",
            "The draft that the `RateLimit` fields follow. With none, responses do not have these fields.")
            .default("\"draft-11\"");
        x_ratelimit: Option<NamedValue<Option<ResetForm>>> = word::<Option<ResetForm>>("\"epoch-seconds\"",
            "Adds the `X-RateLimit` fields, and says how `X-RateLimit-Reset` states a time: in seconds since 1970 \
             (epoch-seconds) or in seconds from now (delta-seconds). With none, responses do not have these fields.")
            .default("\"none\"");
        advertise: Option<Spanned<String>> = text("\"always\"",
            "Which responses have these fields: all (always), only rejections (rejected), none (never), or only those \
             to clients with less than a share of their limit left, such as below-20%.").default("\"always\"")
            .schema("\"pattern\": \"^(always|rejected|never|below-0*(100|[1-9]?[0-9])%)$\"");
        rejection_format: Option<NamedValue<RejectionFormat>> = word::<RejectionFormat>("\"problem\"",
            "The body of a rejection: problem details in JSON (problem), plain text (text), or nothing (empty).")
            .default("\"problem\"");
        grpc_status: Option<NamedValue<GrpcStatus>> = word::<GrpcStatus>("\"unavailable\"",
            "The gRPC status of a rejection.")
            .default("\"resource-exhausted\"");
        retry_jitter: Option<Spanned<String>> = time("\"5s\"",
            "The longest random time that is added to the wait in a rejection, so that clients who were rejected \
             together do not come back together.")
            .default("\"0s\"");
    }

    RawRoute, "route" {
        path: Spanned<OneOrMany> = texts("\"/api\"",
            "A path, or a list of paths, which match exactly. A segment {name} matches any one segment. {*name} at the \
             end matches any number of segments.");
        path_ignores: Option<Spanned<Vec<String>>> = list("[\"case\", \"trailing-slash\", \"parameters\"]",
            "For the program `sluice` only: the differences between paths that the app behind the proxy ignores. With \
             all three, /Export, /export/ and /export;x are limited like /export. A program that reads this file has \
             its own router.").aside()
            .schema("\"items\": { \"enum\": [\"case\", \"trailing-slash\", \"parameters\"] }");
        response: Option<Spanned<RawResponse>> = inline("response", "{ advertise = \"never\" }",
            "Keys of [response] with other values for this route. Keys that you leave out keep the values from there.");
        exempt_preflights: Option<Spanned<RawBudget>> = inline("exempt-preflights", "{ limit = 50, per = \"1s\" }",
            "A separate budget for CORS preflights. If you leave it out, preflights count like other requests.");
        exempt: Option<Spanned<RawExempt>> = inline("exempt", "{ networks = [\"10.0.0.0/8\"] }",
            "Requests that no policy of this route charges. The keys are those of [route.policy.exempt].");
        alternatives: Option<Spanned<Vec<Spanned<OneOrMany>>>> = TableKey::new(KeyKind::List,
            "[\"included\", [\"pool\", \"share-of-pool\"]]",
            "Names of policies of this route that can replace each other. They are tried in this order, and only the \
             first one with room is charged. A list in the list is one alternative whose policies must all have room. \
             The route's other policies must admit a request in any case.")
            .aside().schema("\"minItems\": 2, \"items\": { \"$ref\": \"#/$defs/one-or-many\" }");
        #[serde(default)]
        policy: Vec<RawPolicy> = TableKey::new(
            KeyKind::Tables("policy"), "",
            "A limit. If a route does not have a policy, it is not limited.");
    }

    RawPolicy, "policy" {
        name: Spanned<String> = text("\"per-client\"",
            "The name of the policy in response fields and metrics, at most 64 bytes long.")
            .schema("\"maxLength\": 64, \"pattern\": \"^[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*$\"");
        algorithm: NamedValue<AlgorithmName> = word::<AlgorithmName>("\"token-bucket\"",
            "The algorithm that decides on requests.");
        limit: Option<Spanned<i64>> = number(UNITS, "10",
            "The number of units per period, such as 10 requests per second. For concurrency, it is the number of \
             units in flight at the same time, at most 2147483647 in memory. Leave it out for overload, which finds \
             its limit itself, and for balance, where a key has the units that you credit to it.");
        per: Option<Spanned<String>> = time("\"1s\"",
            "The period of the limit: a time such as 250ms, 1s, 1m, 1h or 1day. For fixed-window, it may also be a \
             day, week or month of the calendar. Leave it out for concurrency, overload and balance.")
            .schema("\"examples\": [\"250ms\", \"1s\", \"1m\", \"1h\", \"1day\", \"day\", \"week\", \"month\"]");
        zone: Option<Spanned<String>> = text("\"Europe/Berlin\"",
            "With per = day, week or month: the time zone, by its IANA name.")
            .default("\"UTC\"").aside();
        anchor: Option<Spanned<i64>> = number(KeyKind::Number(1, 31), "17",
            "With per = month: the day of the month on which the period begins. In a shorter month, that is the last \
             day.")
            .default("1").aside();
        week_start: Option<Spanned<NamedValue<Weekday>>> = word::<Weekday>("\"sunday\"",
            "With per = week: the day on which the period begins.")
            .default("\"monday\"").aside();
        burst: Option<Spanned<i64>> = number(UNITS, "20",
            "The number of units that a key can use at once. Only for token-bucket, leaky-bucket, leaky-queue and \
             slow-down. If you leave it out, it is the limit, or 1 for leaky-queue.");
        max_queue: Option<Spanned<i64>> = number(KeyKind::Number(0, u32::MAX as u64), "50",
            "The most requests that wait at the same time. For leaky-queue and concurrency, that is per key (for \
             concurrency on a server, per key in each process). For overload, it is for all keys together. If you \
             leave it out, it is the limit for leaky-queue, 0 for concurrency, and 1024 for overload.").aside();
        max_wait: Option<Spanned<String>> = time("\"5s\"",
            "The longest wait in the queue. leaky-queue rejects a request at once if its wait would be longer. \
             concurrency and overload reject a request when it has waited for this time. If you leave it out, it is \
             30s, or 500ms for overload.").aside();
        free: Option<Spanned<i64>> = number(KeyKind::Number(0, Quota::MAX_UNITS), "50",
            "For slow-down: the number of units that a key can use without a delay. If you leave it out, it is half of \
             the burst.")
            .aside();
        step: Option<Spanned<String>> = time("\"200ms\"",
            "For slow-down: the time that each further unit adds to the delay.")
            .default("\"1s\"").aside();
        max_delay: Option<Spanned<String>> = time("\"10s\"",
            "For slow-down: the longest delay of a request.")
            .default("\"30s\"").aside();
        limits: Option<Spanned<Vec<i64>>> = list("[2, 1024]",
            "For overload: the lowest and the highest limit that it may find for the route, in units in flight.")
            .aside()
            .schema("\"minItems\": 2, \"maxItems\": 2, \"items\": { \"type\": \"integer\", \"minimum\": 1, \"maximum\": 2147483647 }, \"default\": [2, 1024]");
        starting_at: Option<Spanned<i64>> = number(KeyKind::Number(1, MOST_IN_FLIGHT), "20",
            "For overload: the limit until it has found another one, in units in flight.")
            .default("20").aside();
        queue_target: Option<Spanned<String>> = time("\"20ms\"",
            "For overload: a wait that is too long. If at every instant some request has waited for this time, the \
             server counts as overloaded.")
            .default("\"20ms\"").aside();
        priority: Option<RawPriority> = inline("priority",
            "{ by = \"header:x-plan\", classes = { gold = \"high\", free = \"low\" }, default = \"normal\" }",
            "For overload: the class of a request. Requests in higher classes are served first, and those in lower \
             classes are rejected first.");
        weight: Option<RawWeight> = inline("weight",
            "{ by = \"header:x-plan\", weights = { gold = 10 }, default = 1 }",
            "For overload: the weight of a request's key. Among waiting requests, a key of weight 10 is served ten \
             times as much as a key of weight 1.");
        plans: Option<Spanned<RawPlans>> = inline("plans",
            "{ by = \"header:x-plan\", limits = { gold = { limit = 1000, burst = 50 }, free = { limit = 10 } } }",
            "Limits of their own for keys on some plans, per the policy's period. All other keys have the policy's \
             limit. Clients must not choose their plan, so let the proxy or app in front set the header, and remove \
             one that a client sends. Not for slow-down, overload and balance.");
        max_keys: Option<Spanned<i64>> = number(COUNT, "65536",
            "The most keys that are kept in memory. For leaky-queue and slow-down, it counts keys with a queue of \
             their own; for concurrency, keys with requests in flight; for balance, keys with a balance. Not for \
             overload. If you leave it out, it is 65536, or 1048576 for balance.").aside();
        lease: Option<Spanned<String>> = time("\"10s\"",
            "For concurrency on a server: the time after which the units of a process that has died are free again, \
             from 1s to 1h. A new value counts from the next restart on.").default("\"10s\"").aside();
        when_full: Option<Spanned<NamedValue<WhenFull>>> = word::<WhenFull>("\"overflow\"",
            "For leaky-queue in memory and slow-down: what happens to requests with a new key when max-keys keys have \
             queues. They are rejected (reject), share the queues of further keys (overflow), or take the place of the \
             key that owes least (evict-least).").default("\"reject\"").aside();
        staggered: Option<Spanned<bool>> = flag(
            "For fixed-window and sliding-window in memory: each key's windows begin at a different instant, so that \
             not all clients come back at once.").aside();
        key: Option<Spanned<OneOrMany>> = texts("\"client-ip\"",
            "What has its own budget: everything together (global), each client-ip, each value of header:NAME, \
             cookie:NAME or query:NAME, each user, each path or each method. In a list, each combination of its parts \
             has a budget.")
            .default("\"global\"");
        cost: Option<Spanned<i64>> = number(UNITS, "1", "The number of units that a request costs.").default("1");
        suspended: Option<Spanned<bool>> = flag(
            "Rejects every request with 403 and charges nothing. When you remove it, keys continue with what they have \
             used.")
            .aside();
        shadow: Option<bool> = flag(
            "Tries the policy: it counts and reports requests, but does not reject any.")
            .aside();
        store: Option<Spanned<String>> = text("\"memory\"",
            "Where the budgets are: memory, redis, or the NAME of a [store.NAME]. If you leave it out, it is the only \
             store in the file, or memory if there is none. If the file has several stores, you must write it. \
             slow-down and overload are always in memory.");
        on_failure: Option<NamedValue<FailureMode>> = word::<FailureMode>("\"reject\"",
            "How to decide on requests while the store fails: by limits in this process (local-fallback), admit all \
             (allow), or reject all (reject).")
            .default("\"local-fallback\"");
        on_missing_key: Option<NamedValue<MissingKey>> = word::<MissingKey>("\"skip\"",
            "What happens to requests without a key: they are rejected (reject), this policy does not apply to them \
             (skip), or they share one budget (share).").default("\"reject\"");
        status: Option<Spanned<i64>> = number(KeyKind::Number(400, 599), "429",
            "The HTTP status of a rejection. If you leave it out, it is 429, or 503 if clients share the key.");
        charge_when: Option<Spanned<Vec<i64>>> = list("[401, 403]",
            "Charges only requests whose response has one of these statuses, such as failed logins. If you leave it \
             out, all requests are charged.").aside()
            .schema("\"minItems\": 1, \"items\": { \"type\": \"integer\", \"minimum\": 200, \"maximum\": 599 }");
        settle_by: Option<Spanned<NamedValue<SettleBy>>> = word::<SettleBy>("\"handler\"",
            "What a request costs in the end: what its handler reports (handler), or the bytes of its response \
             (content-bytes). If you leave it out, it is the `cost`.").aside();
        owe_shortfalls: Option<Spanned<bool>> = flag(
            "With settle-by: if a request costs more in the end than its key has units left, the key owes the \
             difference. The debt is paid over time, at the limit's rate, and the key's requests are rejected until \
             they fit. With false, the difference is forgiven.").aside();
        release_at: Option<Spanned<NamedValue<ReleaseAt>>> = word::<ReleaseAt>("\"head\"",
            "For concurrency: when a request stops counting as in flight: at the head of its response (head), or at \
             the end of the body (body).")
            .default("\"body\"").aside();
        penalty: Option<RawPenalty> = inline("penalty",
            "{ rejections = 30, per = \"1m\", ban = \"10m\", factor = 2, up-to = \"1day\", forgetting-after = \"7days\" }",
            "Bans a key that keeps retrying too early: for the time `ban`, if more than `rejections` of its early \
             retries were rejected within the time `per`. With the last three keys, which you may leave out, each \
             further ban is longer. Needs a key that clients do not share.");
        charge_once: Option<RawChargeOnce> = inline("charge-once",
            "{ header = \"idempotency-key\", within = \"24h\", free-retries = 3 }",
            "Charges a request and its retries only once, if they have the same idempotency key. A client can then \
             have up to 1 + free-retries times the limit. In memory, you may add max-keys, the number of requests that \
             are remembered at a time.");
        track_offenders: Option<NamedValue<ShownForm>> = word::<ShownForm>("\"hash\"",
            "Tracks the keys that are rejected most, and shows operators each key as 16 digits of a SHA-256 (hash), as \
             its first 6 characters (prefix), or as it is (whole). If you leave it out, no keys are tracked.").aside();
        warn_at: Option<Spanned<Vec<f64>>> = list("[0.8, 0.95]",
            "Logs and counts when a key has used one of these shares of its limit, once per window. A share is above 0 \
             and at most 1, such as 0.8 for 80 %. If you leave it out, nothing is logged.").aside()
            .schema("\"minItems\": 1, \"items\": { \"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 1 }");
        exempt: Option<Spanned<RawExempt>> = TableKey::new(KeyKind::Inline("exempt"), "{ networks = [\"10.0.0.0/8\"] }",
            "Requests that this policy does not charge, and counts as skipped. A request is exempt if it matches any \
             of these keys.");
    }

    RawPriority, "priority" {
        by: Spanned<OneOrMany> = texts("\"header:x-plan\"",
            "What the class depends on, in the words of the policy's `key`. Clients must not choose it, because all \
             would choose the highest class.");
        classes: Spanned<BTreeMap<String, NamedValue<Priority>>> = TableKey::new(KeyKind::Map("classes"),
            "{ gold = \"high\", free = \"low\" }",
            "The classes of some of its values: low, normal, high or critical.");
        default: Option<NamedValue<Priority>> = word::<Priority>("\"normal\"",
            "The class of all other requests.")
            .default("\"normal\"");
    }

    RawWeight, "weight" {
        by: Spanned<OneOrMany> = texts("\"header:x-plan\"",
            "What the weight depends on, in the words of the policy's `key`. Clients must not choose it.");
        weights: Spanned<BTreeMap<String, Spanned<i64>>> = TableKey::new(KeyKind::Map("weights"),
            "{ gold = 10 }",
            "The weights of some of its values.");
        default: Option<Spanned<i64>> = number(COUNT, "1", "The weight of all other requests.").default("1");
    }

    RawPlans, "plans" {
        by: Spanned<OneOrMany> = texts("\"header:x-plan\"",
            "What the plan depends on, in the words of the policy's `key`. Clients must not choose it, because all \
             would choose the highest limit. All requests of a key must have the same plan.");
        limits: Spanned<BTreeMap<String, RawPlan>> = TableKey::new(KeyKind::MapOf("plan"),
            "{ gold = { limit = 1000, burst = 50 }, free = { limit = 10 } }",
            "The limits of some of its values, per the policy's period. All other requests have the policy's limit.")
            .schema("\"minProperties\": 1");
    }

    RawPlan, "plan" {
        limit: Spanned<i64> = number(UNITS, "1000",
            "The number of units per period. For concurrency, it is the number of units in flight at the same time.");
        burst: Option<Spanned<i64>> = number(UNITS, "50",
            "The number of units that a key can use at once. Only for token-bucket, leaky-bucket and leaky-queue. If \
             you leave it out, it is the limit, or 1 for leaky-queue.");
    }

    RawPenalty, "penalty" {
        rejections: Spanned<i64> = number(COUNT, "30",
            "The number of early retries of a key that are only rejected, within the time `per`. The next one bans the \
             key.");
        per: Spanned<String> = time("\"1m\"", "The time in which early retries are counted.");
        ban: Spanned<String> = time("\"10m\"",
            "The length of a ban. With `factor`, it is the length of the first ban.");
        factor: Option<Spanned<i64>> = number(KeyKind::Number(2, 1_000), "2",
            "Each further ban of a key is this many times as long as the one before, and at most `up-to`. If you leave \
             it out, all bans are equally long.");
        up_to: Option<Spanned<String>> = time("\"1day\"", "The longest ban. It is needed with `factor`.");
        forgetting_after: Option<Spanned<String>> = time("\"7days\"",
            "With `factor`: if a key was not banned for this time, its bans are forgotten, and its next ban is as long \
             as the first. If you leave it out, the time is `up-to`.");
    }

    RawChargeOnce, "charge-once" {
        header: Spanned<String> = text("\"idempotency-key\"", "The request header that has the idempotency key.");
        within: Spanned<String> = time("\"24h\"",
            "For how long retries are free, counted from the end of the response.");
        free_retries: Spanned<i64> = number(COUNT, "3", "The number of free retries of a request.");
        // The most take some 50 GiB.
        max_keys: Option<Spanned<i64>> = number(KeyKind::Number(1, 1_000_000_000), "65536",
            "The number of requests that are remembered at a time, in memory. Leave it out if the policy is on a \
             server.")
            .default("65536");
    }

    RawExempt, "exempt" {
        networks: Option<Spanned<Vec<String>>> = list("[\"10.0.0.0/8\"]",
            "Networks or addresses of clients, as [client-ip] finds them.")
            .schema("\"minItems\": 1, \"items\": { \"type\": \"string\" }");
        headers: Option<Spanned<RawHeaders>> = TableKey::new(KeyKind::Map("headers"), "{ x-internal = \"a long random text\" }",
            "Headers with their exact values: one value, or a list of values of which one is enough. The values are \
             secrets, so do not commit the file with them.").secret();
        paths: Option<Spanned<Vec<String>>> = list("[\"/healthz\", \"/assets/*\"]",
            "Paths, exactly as clients send them. /assets/* stands for all paths below /assets/ that do not contain \
             `..`, `//` or `%`.")
            .schema("\"minItems\": 1, \"items\": { \"type\": \"string\", \"pattern\": \"^/[^*?#]*(/\\\\*)?$\" }");
    }

    #[derive(Clone, Debug, PartialEq)]
    RawBudget, "exempt-preflights" {
        limit: Spanned<i64> = number(UNITS, "50", "The number of preflights per period.");
        per: Spanned<String> = time("\"1s\"", "The period of this limit.");
        burst: Option<Spanned<i64>> = number(UNITS, "100",
            "The number of preflights at once. If you leave it out, it is the limit.");
    }
}

/// The tables in `[store]`, as in the file.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub(crate) struct RawStores(toml::Table);

impl TryFrom<toml::Table> for RawStores {
    type Error = &'static str;

    fn try_from(tables: toml::Table) -> Result<Self, Self::Error> {
        if is_date(tables.keys()) { Err("a date is no table") } else { Ok(Self(tables)) }
    }
}

/// Whether these are the keys of a date, which the parser reads as a table with such a key.
fn is_date<'a>(mut keys: impl Iterator<Item = &'a String>) -> bool {
    keys.any(|name| name.starts_with("$__toml"))
}

/// Headers and their values, which are secrets.
#[derive(Deserialize)]
#[serde(try_from = "BTreeMap<String, OneOrMany>")]
pub(crate) struct RawHeaders(pub(crate) BTreeMap<String, OneOrMany>);

impl TryFrom<BTreeMap<String, OneOrMany>> for RawHeaders {
    type Error = &'static str;

    fn try_from(headers: BTreeMap<String, OneOrMany>) -> Result<Self, Self::Error> {
        if is_date(headers.keys()) { Err("a date is no table") } else { Ok(Self(headers)) }
    }
}

#[derive(Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}
