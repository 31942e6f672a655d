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

/// A type with a few words, each of which stands for a value.
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
            KeyKind::Table("client-ip"), "", "How the client's address is found. Left out: it is the socket's peer.");
        redis: Option<Spanned<RawRedis>> = TableKey::new(
            KeyKind::Table("redis"), "", "The server that keeps all policies without `store = \"memory\"`.");
        store: Option<Spanned<RawStores>> = TableKey::new(
            KeyKind::Map("stores"), "{ pg = { kind = \"postgres\", url = \"postgres://limits@127.0.0.1/limits\" } }",
            "Further stores, which policies name: [store.NAME] with kind and what that kind needs. Left out: the kind is the \
             name.").secret().aside();
        snapshot: Option<Spanned<RawSnapshot>> = TableKey::new(
            KeyKind::Table("snapshot"), "", "Budgets in memory, and bans, outlive a restart in this file.");
        response: Option<Spanned<RawResponse>> = TableKey::new(
            KeyKind::Table("response"), "", "The responses that clients get.");
        #[serde(default)]
        route: Vec<RawRoute> = TableKey::new(
            KeyKind::Tables("route"), "", "At least one. All paths of a route share its policies and their budgets.")
            .schema("\"minItems\": 1");
    }

    #[derive(Clone, PartialEq)]
    RawClientIp, "client-ip" {
        source: Option<Spanned<String>> = text("\"x-forwarded-for\"",
            "peer, x-forwarded-for, forwarded, or the name of a header with a single address, such as x-real-ip; in any case.")
            .default("\"peer\"");
        trusted: Option<Spanned<Vec<String>>> = list("[\"10.0.0.0/8\"]",
            "The networks of your proxies. The header of any other peer is ignored.")
            .schema("\"items\": { \"type\": \"string\" }");
        hops: Option<Spanned<i64>> = number(KeyKind::Number(1, 100), "1",
            "How many proxies there are, instead of their networks or besides.");
        ipv6_prefix: Option<Spanned<i64>> = number(KeyKind::Number(32, 128), "64",
            "IPv6 addresses that share a prefix of this length are one client.").default("64");
    }

    #[derive(Clone, PartialEq)]
    RawRedis, "redis" {
        url: Spanned<OneOrMany> = texts("\"redis://127.0.0.1:6379\"",
            "An address, or a list: some nodes of a cluster, or the sentinels of a master.").secret();
        master: Option<String> = text("\"main\"", "The name by which the sentinels know it.").secret().aside();
        timeout: Option<Spanned<String>> = time("\"50ms\"", "For a whole decision.").default("\"50ms\"");
        prefix: Option<Spanned<String>> = text("\"sluice\"", "The start of all key names.").default("\"sluice\"")
            .schema("\"pattern\": \"^[^{}]*$\"");
        secret: Option<String> = text("\"...\"",
            "The secret of the hashes that stand for clients on the server. The same in all processes that share budgets.")
            .secret().aside();
    }

    #[derive(Clone, PartialEq)]
    RawSnapshot, "snapshot" {
        path: Spanned<String> = text("\"/var/lib/server/limits.snapshot\"",
            "The file, for one process alone. Its owner alone may read it, and the folder must be there.")
            .schema("\"minLength\": 1");
        every: Option<Spanned<String>> = time("\"10s\"",
            "How often it is written, from 100ms on; and once more when the server stops.").default("\"10s\"");
    }

    #[derive(Clone, Debug, PartialEq)]
    RawResponse, "response" {
        fields: Option<NamedValue<RateLimitFields>> = word::<RateLimitFields>("\"draft-11\"",
            "The syntax of the `RateLimit` fields.").default("\"draft-11\"");
        x_ratelimit: Option<NamedValue<Option<ResetForm>>> = word::<Option<ResetForm>>("\"epoch-seconds\"",
            "The form of `X-RateLimit-Reset`, if the `X-RateLimit` fields are sent.").default("\"none\"");
        advertise: Option<Spanned<String>> = text("\"always\"",
            "Which responses carry these fields: always (all), rejected (rejections), never (none), or those with less than a \
             share left, such as below-20%.").default("\"always\"")
            .schema("\"pattern\": \"^(always|rejected|never|below-0*(100|[1-9]?[0-9])%)$\"");
        rejection_format: Option<NamedValue<RejectionFormat>> = word::<RejectionFormat>("\"problem\"",
            "The body of a rejection.").default("\"problem\"");
        grpc_status: Option<NamedValue<GrpcStatus>> = word::<GrpcStatus>("\"unavailable\"",
            "The status of a rejection for gRPC clients.").default("\"resource-exhausted\"");
        retry_jitter: Option<Spanned<String>> = time("\"5s\"",
            "The longest random time that is added to advertised waits, so that clients do not come back together.")
            .default("\"0s\"");
    }

    RawRoute, "route" {
        path: Spanned<OneOrMany> = texts("\"/api\"", "Matches exactly, but for whole segments such as {name}, and {*name} at the end for any number of them.");
        path_ignores: Option<Spanned<Vec<String>>> = list("[\"case\", \"trailing-slash\", \"parameters\"]",
            "sluice: what the app behind the proxy does not distinguish, so that /Export, /export/ and /export;x are \
             /export. A program that reads this file has a router of its own.").aside()
            .schema("\"items\": { \"enum\": [\"case\", \"trailing-slash\", \"parameters\"] }");
        response: Option<Spanned<RawResponse>> = inline("response", "{ advertise = \"never\" }",
            "Any keys of [response], for this route; the others are as there.");
        exempt_preflights: Option<Spanned<RawBudget>> = inline("exempt-preflights", "{ limit = 50, per = \"1s\" }",
            "A separate budget for CORS preflights. Left out: all count.");
        exempt: Option<Spanned<RawExempt>> = inline("exempt", "{ networks = [\"10.0.0.0/8\"] }",
            "Requests that no policy of the route charges: as in a policy.");
        alternatives: Option<Spanned<Vec<Spanned<OneOrMany>>>> = TableKey::new(KeyKind::List,
            "[\"included\", [\"pool\", \"share-of-pool\"]]",
            "Names of policies of the route, or lists of them: the first that have room are charged, and the others are not. \
             The other policies of the route have to admit a request in any case.")
            .aside().schema("\"minItems\": 2, \"items\": { \"$ref\": \"#/$defs/one-or-many\" }");
        #[serde(default)]
        policy: Vec<RawPolicy> = TableKey::new(
            KeyKind::Tables("policy"), "", "A limit. A route without one is not limited.");
    }

    RawPolicy, "policy" {
        name: Spanned<String> = text("\"per-client\"", "The name in response fields and metrics: 64 bytes at most.")
            .schema("\"maxLength\": 64, \"pattern\": \"^[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*$\"");
        algorithm: NamedValue<AlgorithmName> = word::<AlgorithmName>("\"token-bucket\"", "How requests are counted.");
        limit: Option<Spanned<i64>> = number(UNITS, "10",
            "Units per period; of concurrency, units in flight at once, of which there are 2147483647 at most in memory. Not \
             for overload, which finds its limit itself, and balance, whose keys have what is credited to them.");
        per: Option<Spanned<String>> = time("\"1s\"",
            "The period: a time such as 250ms, 1s, 1m, 1h or 1day, or for fixed-window also day, week or month of the \
             calendar. Not for concurrency, overload and balance.")
            .schema("\"examples\": [\"250ms\", \"1s\", \"1m\", \"1h\", \"1day\", \"day\", \"week\", \"month\"]");
        zone: Option<Spanned<String>> = text("\"Europe/Berlin\"",
            "per = day, week or month: the time zone, by its IANA name.").default("\"UTC\"").aside();
        anchor: Option<Spanned<i64>> = number(KeyKind::Number(1, 31), "17",
            "per = month: the day on which months begin; in shorter months, their last day.").default("1").aside();
        week_start: Option<Spanned<NamedValue<Weekday>>> = word::<Weekday>("\"sunday\"",
            "per = week: the day on which weeks begin.").default("\"monday\"").aside();
        burst: Option<Spanned<i64>> = number(UNITS, "20",
            "Units at once; not for windows. Left out: the limit, or 1 for leaky-queue.");
        max_queue: Option<Spanned<i64>> = number(KeyKind::Number(0, u32::MAX as u64), "50",
            "leaky-queue and concurrency: the most requests of a key that wait; of concurrency on a server, in each process. \
             overload: of all keys. Left out: leaky-queue, the limit; concurrency, 0; overload, 1024.").aside();
        max_wait: Option<Spanned<String>> = time("\"5s\"",
            "leaky-queue: requests that would wait longer are rejected. concurrency and overload: those that have waited so \
             long. Left out: 30s, or 500ms for overload.").aside();
        free: Option<Spanned<i64>> = number(KeyKind::Number(0, Quota::MAX_UNITS), "50",
            "slow-down: units of a key that are not delayed. Left out: half of the burst.").aside();
        step: Option<Spanned<String>> = time("\"200ms\"",
            "slow-down: by how much each further unit lengthens the delay.").default("\"1s\"").aside();
        max_delay: Option<Spanned<String>> = time("\"10s\"", "slow-down: the longest delay.").default("\"30s\"").aside();
        limits: Option<Spanned<Vec<i64>>> = list("[2, 1024]",
            "overload: the lowest and the highest limit of units in flight that it may find, for the route.").aside()
            .schema("\"minItems\": 2, \"maxItems\": 2, \"items\": { \"type\": \"integer\", \"minimum\": 1, \"maximum\": 2147483647 }, \"default\": [2, 1024]");
        starting_at: Option<Spanned<i64>> = number(KeyKind::Number(1, MOST_IN_FLIGHT), "20",
            "overload: the limit at first.").default("20").aside();
        queue_target: Option<Spanned<String>> = time("\"20ms\"",
            "overload: the server counts as overloaded if there is always a request that has waited for so long.")
            .default("\"20ms\"").aside();
        priority: Option<RawPriority> = inline("priority",
            "{ by = \"header:x-plan\", classes = { gold = \"high\", free = \"low\" }, default = \"normal\" }",
            "overload: the class of a request. Higher classes are served first, and lower ones rejected first.");
        weight: Option<RawWeight> = inline("weight",
            "{ by = \"header:x-plan\", weights = { gold = 10 }, default = 1 }",
            "overload: the weight of the key of a request. Of those that wait, a key of weight 10 is served ten times as much.");
        plans: Option<Spanned<RawPlans>> = inline("plans",
            "{ by = \"header:x-plan\", limits = { gold = { limit = 1000, burst = 50 }, free = { limit = 10 } } }",
            "Limits over time and concurrency: keys with some plans have a limit of their own, per the policy's period, and all \
             others have the policy's. No plan that clients may choose: the proxy or app in front sets the header, and removes \
             one that a client sends. Not for slow-down, overload and balance.");
        max_keys: Option<Spanned<i64>> = number(COUNT, "65536",
            "In memory: how many keys are kept. leaky-queue, slow-down: the most keys with a queue of their own at a time. \
             concurrency: with requests in flight. balance: with a balance. Not for overload. Left out: 65536, or 1048576 for \
             balance.").aside();
        lease: Option<Spanned<String>> = time("\"10s\"",
            "concurrency on a server: the units of a process that dies are free after this time, from 1s to 1h. Kept until a \
             restart.").default("\"10s\"").aside();
        when_full: Option<Spanned<NamedValue<WhenFull>>> = word::<WhenFull>("\"overflow\"",
            "leaky-queue in memory, slow-down: how requests of further keys are handled.").default("\"reject\"").aside();
        staggered: Option<Spanned<bool>> = flag(
            "fixed-window, sliding-window in memory: the windows of each key begin at another instant.").aside();
        key: Option<Spanned<OneOrMany>> = texts("\"client-ip\"",
            "What has a budget of its own: global, client-ip, header:NAME, cookie:NAME, query:NAME, user, path, method, or a list of these.")
            .default("\"global\"");
        cost: Option<Spanned<i64>> = number(UNITS, "1", "The units that a request costs.").default("1");
        suspended: Option<Spanned<bool>> = flag(
            "Reject every request with 403, and charge none, until this is removed. What keys have used stays.").aside();
        shadow: Option<bool> = flag("Count and report, but reject no request.").aside();
        store: Option<Spanned<String>> = text("\"memory\"",
            "Where the budgets are: memory, redis, or the name of a [store.NAME]. Left out: the only store, or memory if \
             there is none; with several, none may be left out. slow-down and overload are in memory.");
        on_failure: Option<NamedValue<FailureMode>> = word::<FailureMode>("\"reject\"",
            "How requests are decided while the store fails: by limits of this process, or all allowed, or all rejected.")
            .default("\"local-fallback\"");
        on_missing_key: Option<NamedValue<MissingKey>> = word::<MissingKey>("\"skip\"",
            "How requests without a key are handled.").default("\"reject\"");
        status: Option<Spanned<i64>> = number(KeyKind::Number(400, 599), "429",
            "The status of a rejection. Left out: 429, or 503 if clients share the key.");
        charge_when: Option<Spanned<Vec<i64>>> = list("[401, 403]",
            "Count only requests whose response has one of these statuses. Left out: count all.").aside()
            .schema("\"minItems\": 1, \"items\": { \"type\": \"integer\", \"minimum\": 200, \"maximum\": 599 }");
        settle_by: Option<Spanned<NamedValue<SettleBy>>> = word::<SettleBy>("\"handler\"",
            "What is charged in the end: what the handler reports, or the bytes of the response. Left out: the cost.").aside();
        owe_shortfalls: Option<Spanned<bool>> = flag(
            "With settle-by: what a request costs beyond its charge, where no units are left, is owed and not forgiven. Time \
             pays it at the rate of the limit, and the requests of the key are rejected until they fit.").aside();
        release_at: Option<Spanned<NamedValue<ReleaseAt>>> = word::<ReleaseAt>("\"head\"",
            "concurrency: when a request is over, at the head of its response or at the end of the body.")
            .default("\"body\"").aside();
        penalty: Option<RawPenalty> = inline("penalty",
            "{ rejections = 30, per = \"1m\", ban = \"10m\", factor = 2, up-to = \"1day\", forgetting-after = \"7days\" }",
            "Bans a key that retries too early, and is rejected, more often than this. Needs a key that clients do not share. \
             The last three may be left out: all bans are then equally long.");
        charge_once: Option<RawChargeOnce> = inline("charge-once",
            "{ header = \"idempotency-key\", within = \"24h\", free-retries = 3 }",
            "Charges a request and its retries once, by an idempotency key. A client can have up to 1 + free-retries times \
             the limit. In memory also max-keys: how many requests are remembered at a time.");
        track_offenders: Option<NamedValue<ShownForm>> = word::<ShownForm>("\"hash\"",
            "Track the keys that are rejected most, and show them to operators in this form: 16 digits of a SHA-256, the \
             first 6 characters, or the whole key. Left out: track none.").aside();
        warn_at: Option<Spanned<Vec<f64>>> = list("[0.8, 0.95]",
            "Log and count when the use of a key passes one of these shares of its limit, once per window. Above 0, and at \
             most 1. Left out: none.").aside()
            .schema("\"minItems\": 1, \"items\": { \"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 1 }");
        exempt: Option<Spanned<RawExempt>> = TableKey::new(KeyKind::Inline("exempt"), "{ networks = [\"10.0.0.0/8\"] }",
            "Requests that are not charged, and count as skipped: those that meet any of these.");
    }

    RawPriority, "priority" {
        by: Spanned<OneOrMany> = texts("\"header:x-plan\"",
            "What the class depends on, in the words of `key`. Nothing that clients may choose: all would choose the highest.");
        classes: Spanned<BTreeMap<String, NamedValue<Priority>>> = TableKey::new(KeyKind::Map("classes"),
            "{ gold = \"high\", free = \"low\" }", "low, normal, high or critical for some values of it.");
        default: Option<NamedValue<Priority>> = word::<Priority>("\"normal\"",
            "The class of all other requests.").default("\"normal\"");
    }

    RawWeight, "weight" {
        by: Spanned<OneOrMany> = texts("\"header:x-plan\"",
            "What the weight depends on, in the words of `key`. Nothing that clients may choose.");
        weights: Spanned<BTreeMap<String, Spanned<i64>>> = TableKey::new(KeyKind::Map("weights"),
            "{ gold = 10 }", "Weights for some values of it.");
        default: Option<Spanned<i64>> = number(COUNT, "1", "The weight of all other requests.").default("1");
    }

    RawPlans, "plans" {
        by: Spanned<OneOrMany> = texts("\"header:x-plan\"",
            "What the plan depends on, in the words of `key`. Nothing that clients may choose: all would choose the highest \
             limit. All requests of a key need the same plan.");
        limits: Spanned<BTreeMap<String, RawPlan>> = TableKey::new(KeyKind::MapOf("plan"),
            "{ gold = { limit = 1000, burst = 50 }, free = { limit = 10 } }",
            "Limits for some values of it, per the policy's own period. All other requests have the policy's limit.")
            .schema("\"minProperties\": 1");
    }

    RawPlan, "plan" {
        limit: Spanned<i64> = number(UNITS, "1000", "Units per period; of concurrency, units in flight at once.");
        burst: Option<Spanned<i64>> = number(UNITS, "50",
            "Units at once; not for windows and concurrency. Left out: the limit, or 1 for leaky-queue.");
    }

    RawPenalty, "penalty" {
        rejections: Spanned<i64> = number(COUNT, "30", "So many rejections of one key");
        per: Spanned<String> = time("\"1m\"", "in this time ban it");
        ban: Spanned<String> = time("\"10m\"", "for this time.");
        factor: Option<Spanned<i64>> = number(KeyKind::Number(2, 1_000), "2",
            "Each further ban is so many times as long, up to up-to. Left out: all are equal.");
        up_to: Option<Spanned<String>> = time("\"1day\"", "With factor: the longest ban.");
        forgetting_after: Option<Spanned<String>> = time("\"7days\"",
            "With factor: the bans of a key are forgotten if it was not banned for so long. Left out: up-to.");
    }

    RawChargeOnce, "charge-once" {
        header: Spanned<String> = text("\"idempotency-key\"", "The header with the idempotency key.");
        within: Spanned<String> = time("\"24h\"", "For how long retries are free, from the end of the response on.");
        free_retries: Spanned<i64> = number(COUNT, "3", "How many retries of a request are free.");
        // The most take some 50 GiB.
        max_keys: Option<Spanned<i64>> = number(KeyKind::Number(1, 1_000_000_000), "65536",
            "How many requests are remembered at a time, in memory. For a policy on a server, leave it out.").default("65536");
    }

    RawExempt, "exempt" {
        networks: Option<Spanned<Vec<String>>> = list("[\"10.0.0.0/8\"]",
            "Networks or addresses of clients, as [client-ip] finds them.")
            .schema("\"minItems\": 1, \"items\": { \"type\": \"string\" }");
        headers: Option<Spanned<RawHeaders>> = TableKey::new(KeyKind::Map("headers"), "{ x-internal = \"a long random text\" }",
            "Headers and their exact values, which are secrets: one each, or a list of which one suffices. Do not commit the \
             file with them.").secret();
        paths: Option<Spanned<Vec<String>>> = list("[\"/healthz\", \"/assets/*\"]",
            "Paths exactly as they are sent, or /assets/* for all below /assets/, without `..`, `//` and `%`.")
            .schema("\"minItems\": 1, \"items\": { \"type\": \"string\", \"pattern\": \"^/[^*?#]*(/\\\\*)?$\" }");
    }

    #[derive(Clone, Debug, PartialEq)]
    RawBudget, "exempt-preflights" {
        limit: Spanned<i64> = number(UNITS, "50", "Preflights per period.");
        per: Spanned<String> = time("\"1s\"", "The period.");
        burst: Option<Spanned<i64>> = number(UNITS, "100", "Preflights at once. Left out: the limit.");
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
