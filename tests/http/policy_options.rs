//! Every pair of policy options, and every option with every limiter kind, set in both orders: the result is the one in
//! `docs/policy_options.md`, and a TOML file gets it, too.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use Opt::{
    Bans, ChargeWhen, ClientKey, Cost, CostAfter, CostFn, Exempt, FreeRetries, FreeRetriesMaxKeys, LimitFn, OnCrossing,
    OnFailure, OweShortfalls, PriorityFn, QuotaFn, ReleaseAtHead, SettleByContentBytes, SettleByHandler, SeveralKeys,
    Shadow, ShareWithoutKey, SharedKey, SkipWithoutKey, Status, TrackOffenders, WeightFn, When, WindowFn,
};
use http::{HeaderName, StatusCode};
use tower_sluice::RateLimiter;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{Global, HeaderKey, KeyError, KeyExtractor};
use tower_sluice::limiter::{Answer, Ask, IntoLimiter, Priority};
use tower_sluice::policy::ShowKey;
use tower_sluice::{
    Balance, CalendarWindow, ChargeOnce, Concurrency, Decision, Exemptions, FailureMode, LeakyQueue, Limiter,
    MissingKey, Overload, PartitionKey, Penalty, Policy, Quota, RateLimitLayer, RequestHead, SharedBalance,
    SharedConcurrency, SharedQueue, SlowDown,
};
use tower_sluice_redis::{Redis, RedisStore};

/// An option, in the table's order. A setter occurs more than once where its value matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Opt {
    ClientKey,
    SharedKey,
    ShareWithoutKey,
    SkipWithoutKey,
    Cost,
    CostFn,
    QuotaFn,
    ChargeWhen,
    CostAfter,
    SettleByHandler,
    SettleByContentBytes,
    OweShortfalls,
    ReleaseAtHead,
    Bans,
    FreeRetries,
    FreeRetriesMaxKeys,
    When,
    Exempt,
    Shadow,
    OnFailure,
    Status,
    TrackOffenders,
    PriorityFn,
    WeightFn,
    WindowFn,
    LimitFn,
    OnCrossing,
    SeveralKeys,
}

/// Each option, with its name in the table and its lines in TOML, if a file can have it.
const OPTIONS: [(Opt, &str, Option<&str>); 28] = [
    (ClientKey, "`key` of a client", Some("key = \"header:x-api-key\"")),
    (SharedKey, "`key` that all share", Some("key = \"global\"")),
    (ShareWithoutKey, "`on_missing_key(Share)`", Some("on-missing-key = \"share\"")),
    (SkipWithoutKey, "`on_missing_key(Skip)`", Some("on-missing-key = \"skip\"")),
    (Cost, "`cost`", Some("cost = 2")),
    (CostFn, "`cost_fn`", None),
    (QuotaFn, "`quota_fn`", None),
    (ChargeWhen, "`charge_when`", Some("charge-when = [401]")),
    (CostAfter, "`cost_after`", None),
    (SettleByHandler, "`settle_by_handler`", Some("settle-by = \"handler\"")),
    (SettleByContentBytes, "`settle_by_content_bytes`", Some("settle-by = \"content-bytes\"")),
    (OweShortfalls, "`owe_shortfalls`", Some("owe-shortfalls = true")),
    (ReleaseAtHead, "`release_at_head`", Some("release-at = \"head\"")),
    (Bans, "`penalty`", Some("penalty = { rejections = 3, per = \"1m\", ban = \"1m\" }")),
    (
        FreeRetries,
        "`charge_once`",
        Some("charge-once = { header = \"idempotency-key\", within = \"1h\", free-retries = 1 }"),
    ),
    (
        FreeRetriesMaxKeys,
        "`charge_once`, `max_keys`",
        Some("charge-once = { header = \"idempotency-key\", within = \"1h\", free-retries = 1, max-keys = 9 }"),
    ),
    (When, "`when`", None),
    (Exempt, "`exempt`", Some("exempt = { paths = [\"/healthz\"] }")),
    (Shadow, "`shadow`", Some("shadow = true")),
    (OnFailure, "`on_failure`", Some("on-failure = \"allow\"")),
    (Status, "`status`", Some("status = 418")),
    (TrackOffenders, "`track_offenders`", Some("track-offenders = \"hash\"")),
    (
        PriorityFn,
        "`priority_fn`",
        Some("priority = { by = \"header:x-plan\", classes = { gold = \"high\" }, default = \"low\" }"),
    ),
    (WeightFn, "`weight_fn`", Some("weight = { by = \"header:x-plan\", weights = { gold = 10 } }")),
    (WindowFn, "`window_fn`", None),
    (LimitFn, "`limit_fn`", None),
    (OnCrossing, "`on_crossing`", Some("warn-at = [0.8]")),
    (SeveralKeys, "`key` with several keys of a request", None),
];

/// A limiter that advertises nothing and takes no quotas, which is the least that a custom one may do.
struct Custom;

impl Limiter for Custom {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(1, 1).into()
    }
}

/// An extractor for requests that may have several keys.
struct Several;

impl KeyExtractor for Several {
    fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(PartitionKey::from("k"))
    }

    fn has_several(&self) -> bool {
        true
    }
}

/// A limiter kind: its name in the table, its constructor, and its lines in TOML.
type Kind = (&'static str, fn() -> Arc<dyn Limiter>, Option<&'static str>);

const QUOTA: Quota = Quota::per_second(9);

const KINDS: &[Kind] = &[
    ("memory", || TokenBucket::new(QUOTA).into_limiter(), Some("algorithm = \"token-bucket\"\nper = \"1s\"")),
    (
        "server",
        || RateLimiter::new(TokenBucket::new(QUOTA), RedisStore::new(&redis(), "p")).into_limiter(),
        Some("algorithm = \"token-bucket\"\nper = \"1s\"\nstore = \"redis\""),
    ),
    (
        "queue",
        || LeakyQueue::new(QUOTA.burst(2)).into_limiter(),
        Some("algorithm = \"leaky-queue\"\nper = \"1s\"\nburst = 2"),
    ),
    (
        "`SlowDown`",
        || SlowDown::new(QUOTA.burst(2)).into_limiter(),
        Some("algorithm = \"slow-down\"\nper = \"1s\"\nburst = 2"),
    ),
    (
        "queue on a server",
        || SharedQueue::new(redis(), "p", QUOTA.burst(2)).into_limiter(),
        Some("algorithm = \"leaky-queue\"\nper = \"1s\"\nburst = 2\nstore = \"redis\""),
    ),
    ("`Concurrency`", || Concurrency::new(9).into_limiter(), Some("algorithm = \"concurrency\"")),
    (
        "`SharedConcurrency`",
        || SharedConcurrency::new(redis(), "p", 9).into_limiter(),
        Some("algorithm = \"concurrency\"\nstore = \"redis\""),
    ),
    ("`Overload`", || Overload::new().into_limiter(), Some("algorithm = \"overload\"")),
    ("`Balance`", || Balance::new().into_limiter(), Some("algorithm = \"balance\"")),
    (
        "`SharedBalance`",
        || SharedBalance::new(redis(), "p").into_limiter(),
        Some("algorithm = \"balance\"\nstore = \"redis\""),
    ),
    ("custom", || Arc::new(Custom), None),
    (
        "`CalendarWindow`",
        || CalendarWindow::monthly(9).into_limiter(),
        Some("algorithm = \"fixed-window\"\nper = \"month\""),
    ),
];

/// The server is never called, because policies are only built.
fn redis() -> Redis {
    Redis::single("redis://127.0.0.1:1").open().unwrap()
}

fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|(it, ..)| *it == name).unwrap()
}

fn set(policy: Policy, option: Opt) -> Policy {
    let once = || ChargeOnce::by_header(HeaderName::from_static("idempotency-key"));
    match option {
        ClientKey => policy.key(HeaderKey::from_static("x-api-key")),
        SharedKey => policy.key(Global),
        ShareWithoutKey => policy.on_missing_key(MissingKey::Share),
        SkipWithoutKey => policy.on_missing_key(MissingKey::Skip),
        Cost => policy.cost(2),
        CostFn => policy.cost_fn(|_| 2),
        QuotaFn => policy.quota_fn(|_| Some(QUOTA)),
        ChargeWhen => policy.charge_when(|_| true),
        CostAfter => policy.cost_after(|_| 1),
        SettleByHandler => policy.settle_by_handler(),
        SettleByContentBytes => policy.settle_by_content_bytes(),
        OweShortfalls => policy.owe_shortfalls(),
        ReleaseAtHead => policy.release_at_head(),
        Bans => policy.penalty(Penalty::new(QUOTA, std::time::Duration::from_secs(9))),
        FreeRetries => policy.charge_once(once()),
        FreeRetriesMaxKeys => policy.charge_once(once().max_keys(9)),
        When => policy.when(|_| true),
        Exempt => policy.exempt(Exemptions::new().path("/healthz").unwrap()),
        Shadow => policy.shadow(),
        OnFailure => policy.on_failure(FailureMode::Allow),
        Status => policy.status(StatusCode::IM_A_TEAPOT),
        TrackOffenders => policy.track_offenders(ShowKey::hash()),
        PriorityFn => policy.priority_fn(|_| Priority::High),
        WeightFn => policy.weight_fn(|_| NonZeroU32::MIN),
        WindowFn => policy.window_fn(|_| None),
        LimitFn => policy.limit_fn(|_| Some(9)),
        OnCrossing => policy.on_crossing(0.8, |_| ()),
        SeveralKeys => policy.key(Several),
    }
}

/// Options that one setter sets: its later call wins.
fn is_one_setter(first: Opt, second: Opt) -> bool {
    let twice = [
        &[ClientKey, SharedKey, SeveralKeys][..],
        &[ShareWithoutKey, SkipWithoutKey],
        &[FreeRetries, FreeRetriesMaxKeys],
    ];
    first == second || twice.iter().any(|setter| setter.contains(&first) && setter.contains(&second))
}

/// The other options that `options` need: a penalty needs a client's key, and a debt needs a settled cost, unless the
/// options are about these themselves.
fn needs(kind: &Kind, options: &[Opt]) -> Vec<Opt> {
    let has = |some: &[Opt]| options.iter().any(|option| some.contains(option));
    let mut needs = Vec::new();
    if has(&[Bans]) && !has(&[ClientKey, SharedKey, SeveralKeys]) {
        needs.push(ClientKey);
    }
    let settles = has(&[ChargeWhen, CostAfter, SettleByHandler, SettleByContentBytes]);
    if has(&[OweShortfalls]) && !settles && !kind.0.contains("Concurrency") && kind.0 != "`Overload`" {
        needs.push(SettleByHandler);
    }
    needs
}

/// Returns the error for a policy with these options, set in this order.
fn verdict(kind: &Kind, options: &[Opt]) -> Result<(), String> {
    let all = needs(kind, options).into_iter().chain(options.iter().copied());
    let policy = all.fold(Policy::new("p", (kind.1)()), set);
    RateLimitLayer::try_new(policy).map(drop).map_err(|error| error.to_string())
}

/// The kind of limiter with which the test tries a pair of options: the kind that they need, or memory.
fn usual_kind(options: &[Opt]) -> &'static Kind {
    kind(match () {
        _ if options.iter().any(|option| [PriorityFn, WeightFn].contains(option)) => "`Overload`",
        _ if options.contains(&ReleaseAtHead) => "`Concurrency`",
        _ if options.contains(&WindowFn) => "`CalendarWindow`",
        _ if options.contains(&LimitFn) => "`Concurrency`",
        _ => "memory",
    })
}

/// The table: a cell for each row and column, and a text for each note.
struct Table {
    cells: BTreeMap<(String, String), String>,
    notes: BTreeMap<String, String>,
}

impl Table {
    fn read() -> Self {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policy_options.md");
        let text = std::fs::read_to_string(path).unwrap();
        let mut table = Self { cells: BTreeMap::new(), notes: BTreeMap::new() };
        let mut columns = Vec::new();
        for line in text.lines() {
            let cells: Vec<_> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
            match cells[..] {
                [note, text] if line.starts_with("| **") => {
                    table.notes.insert(note.trim_matches('*').to_owned(), text.to_owned());
                }
                [name, ref rest @ ..] if line.starts_with("| |") => {
                    assert_eq!(name, "");
                    columns = rest.iter().map(|column| (*column).to_owned()).collect();
                }
                [name, ref rest @ ..] if line.starts_with("| ") && rest.len() == columns.len() => {
                    let named = name.trim_start_matches(|char: char| char.is_ascii_digit()).trim();
                    table.cells.extend(
                        columns
                            .iter()
                            .zip(rest)
                            .map(|(column, cell)| ((named.to_owned(), column.clone()), (*cell).to_owned())),
                    );
                }
                _ => {}
            }
        }
        table
    }

    /// The cell for an option and a limiter kind.
    fn with_kind(&self, option: Opt, kind: &Kind) -> &str {
        self.cell(name(option), kind.0)
    }

    /// The cell for two options: the later one has the row, and the column is the earlier one's number.
    fn pair(&self, first: Opt, second: Opt) -> &str {
        let (first, second) = (first.min(second), first.max(second));
        self.cell(name(second), &(first as usize + 1).to_string())
    }

    fn cell(&self, row: &str, column: &str) -> &str {
        let cell = self.cells.get(&(row.to_owned(), column.to_owned()));
        cell.unwrap_or_else(|| panic!("the table has no cell for {row} and {column}"))
    }
}

fn name(option: Opt) -> &'static str {
    OPTIONS[option as usize].1
}

/// Whether a cell says that a pair is refused.
fn is_refused(cell: &str) -> bool {
    cell.starts_with('x')
}

/// Compares a pair's result with its cell: refused with the note's text, or accepted.
fn compare(table: &Table, what: &str, cell: &str, verdict: &Result<(), String>) -> Option<String> {
    let is_known = ["", "="].contains(&cell) || table.notes.contains_key(cell);
    let agrees = match (is_refused(cell), verdict) {
        (true, Err(error)) => is_known && error.ends_with(&format!(": {}", table.notes.get(cell)?)),
        (false, Ok(())) => is_known,
        _ => false,
    };
    (!agrees).then(|| format!("{what}: the table has `{cell}`, and the result is {verdict:?}"))
}

/// The result does not depend on the order of setting.
#[test]
fn pairs_have_the_tables_result() {
    let table = Table::read();
    let mut wrong = Vec::new();
    let (mut pairs, mut refused, mut defined) = (0, 0, 0);
    for (first, ..) in OPTIONS {
        for (second, ..) in OPTIONS.into_iter().take_while(|(second, ..)| *second <= first) {
            let cell = table.pair(first, second);
            let kind = usual_kind(&[first, second]);
            let [forth, back] = [[first, second], [second, first]].map(|options| verdict(kind, &options));
            let what = format!("{} and {}", name(first), name(second));
            wrong.extend(compare(&table, &what, cell, &forth));
            if first != second {
                assert_eq!(forth, back, "{what}: the order matters");
                assert_eq!(cell == "=", is_one_setter(first, second), "{what}");
            }
            pairs += 1;
            refused += usize::from(is_refused(cell));
            defined += usize::from(cell.starts_with('d'));
        }
        for kind in KINDS {
            let cell = table.with_kind(first, kind);
            let what = format!("{} with {}", name(first), kind.0);
            wrong.extend(compare(&table, &what, cell, &verdict(kind, &[first])));
            pairs += 1;
            refused += usize::from(is_refused(cell));
            defined += usize::from(cell.starts_with('d'));
        }
    }
    println!("{pairs} pairs, {refused} refused, {defined} defined");
    assert!(wrong.is_empty(), "{} of {pairs}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Pairs are enough: if two options are accepted with each other and each with a limiter, all three are accepted.
#[test]
fn only_pairs_refuse_options_and_limiter() {
    let table = Table::read();
    for kind in KINDS {
        for (first, ..) in OPTIONS {
            for (second, ..) in OPTIONS.into_iter().filter(|(second, ..)| !is_one_setter(first, *second)) {
                let mut options = needs(kind, &[first, second]);
                options.extend([first, second]);
                let is_pair_refused = options.iter().any(|option| {
                    let others = options.iter().filter(|other| !is_one_setter(*option, **other));
                    is_refused(table.with_kind(*option, kind))
                        || others.into_iter().any(|other| is_refused(table.pair(*option, *other)))
                });
                let verdict = verdict(kind, &[first, second]);
                assert_eq!(verdict.is_err(), is_pair_refused, "{}, {options:?}: {verdict:?}", kind.0);
            }
        }
    }
}

/// Every note is used, and the table contains only the pairs.
#[test]
fn the_table_has_exactly_its_notes() {
    let table = Table::read();
    let used = |note: &String| table.cells.values().any(|cell| cell == note);
    let unused: Vec<_> = table.notes.keys().filter(|note| !used(note)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}

mod toml {
    use tower_sluice_config::Config;

    use super::*;

    /// Letters and digits only, because a file writes method names with other punctuation.
    fn letters(text: &str) -> String {
        text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    }

    fn parse(kind: &str, lines: &[&str]) -> Result<(), String> {
        let text = format!(
            "[redis]\nurl = \"redis://127.0.0.1:1\"\n[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\n{}\
             {kind}\n{}\n{}",
            if kind.contains("overload") || kind.contains("balance") { "" } else { "limit = 9\n" },
            if kind.contains("store") { "" } else { "store = \"memory\"" },
            lines.join("\n")
        );
        let reader = Config::reader().store("redis", tower_sluice_redis::file::open);
        reader.parse("f.toml", &text).map(drop).map_err(|error| error.to_string())
    }

    /// Compares the results in code and in a file: both accept, or both refuse for one reason.
    fn assert_same(what: &str, code: &Result<(), String>, file: &Result<(), String>) {
        match (code, file) {
            (Ok(()), Ok(())) => {}
            (Err(code), Err(file)) => {
                // The reason follows the second colon, behind the names of the two options.
                let reason = code.splitn(3, ": ").nth(2).unwrap();
                let reason = letters(&reason.replace("`cost_after`", "`cost_after` (in code)"));
                assert!(letters(file).contains(&reason), "{what}:\n{code}\n{file}");
            }
            _ => panic!("{what}: {code:?} in code, and {file:?} in a file"),
        }
    }

    #[test]
    fn a_file_has_each_pairs_result() {
        let mut pairs = 0;
        for (first, _, line) in OPTIONS {
            let Some(line) = line else { continue };
            for (second, _, other) in OPTIONS {
                let Some(other) = other else { continue };
                // A file has one value for a key.
                let key = |line: &str| line.split(' ').next().map(str::to_owned);
                if key(line) == key(other) {
                    continue;
                }
                let kind = usual_kind(&[first, second]);
                let needed = needs(kind, &[first, second]);
                let mut lines: Vec<_> = needed.iter().map(|option| OPTIONS[*option as usize].2.unwrap()).collect();
                lines.extend([line, other]);
                let code = verdict(kind, &[first, second]);
                assert_same(&lines.join(" and "), &code, &parse(kind.2.unwrap(), &lines));
                pairs += 1;
            }
            for kind in KINDS {
                let Some(algorithm) = kind.2 else { continue };
                let needed = needs(kind, &[first]);
                let mut lines: Vec<_> = needed.iter().map(|option| OPTIONS[*option as usize].2.unwrap()).collect();
                lines.push(line);
                assert_same(&format!("{algorithm} and {line}"), &verdict(kind, &[first]), &parse(algorithm, &lines));
                pairs += 1;
            }
        }
        println!("{pairs} pairs in files");
    }
}
