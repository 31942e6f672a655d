//! Stores: a file's, by their names, and a program's, by their kinds.

use std::sync::{Arc, Mutex};

use serde::Deserialize;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::time::ManualClock;
use tower_sluice::{LeakyQueue, Limiter};
use tower_sluice_config::store::{ConcurrencySpec, NoLimiter, QueueSpec, RateSpec, Store, StoreTable};
use tower_sluice_config::{Config, ConfigError, ConfigReader};

/// The requests to stores of the kind `noted`.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: String) {
        self.0.lock().unwrap().push(note);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn reader(&self) -> ConfigReader {
        let notes = self.clone();
        crate::reader().store("noted", move |table| notes.open(table))
    }

    fn open(&self, table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        struct Raw {
            url: String,
            #[serde(default)]
            pool_size: u8,
            #[serde(rename = "timeout")]
            _timeout: Option<String>,
        }
        let Raw { url, pool_size, .. } = table.read()?;
        let timeout = table.time("timeout")?;
        if url.is_empty() {
            return Err(table.error("url", "url is empty; write the address"));
        }
        self.add(format!("open {} of {}: {url} {pool_size} {timeout:?}", table.name(), table.kind()));
        Ok(Arc::new(Noted { notes: self.clone(), store: table.name().to_owned() }))
    }
}

struct Noted {
    notes: Notes,
    store: String,
}

impl Store for Noted {
    fn rate_limiter(&self, name: &str, rate: RateSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        self.notes.add(format!("{} {name}", self.store));
        match rate {
            RateSpec::TokenBucket(bucket) => Ok(bucket.into_limiter()),
            RateSpec::LeakyBucket(_) => Err(NoLimiter::unfit("it leaks; choose token-bucket")),
            _ => Err(NoLimiter::Unsupported),
        }
    }

    fn queue(&self, name: &str, queue: QueueSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        self.notes.add(format!("{} {name}: {:?} {:?}", self.store, queue.max_queue, queue.max_wait));
        Ok(LeakyQueue::new(queue.quota).into_limiter())
    }
}

fn route(policies: &[&str]) -> String {
    let policy = |(index, lines): (usize, &&str)| {
        let algorithm = if lines.contains("algorithm") { "" } else { "algorithm = \"token-bucket\"\n" };
        format!("[[route.policy]]\nname = \"p{index}\"\nlimit = 1\nper = \"1h\"\n{algorithm}{lines}\n")
    };
    format!("[[route]]\npath = \"/a\"\n{}", policies.iter().enumerate().map(policy).collect::<String>())
}

#[test]
fn policies_name_stores_of_the_file() {
    let notes = Notes::default();
    let stores = "[store.one]\nkind = \"noted\"\nurl = \"h:1\"\ntimeout = \"50ms\"\n[store.noted]\nurl = \"h:2\"\npool-size = 3\n";
    let policies = [
        "store = \"one\"",
        "store = \"noted\"",
        "store = \"memory\"",
        "store = \"one\"\nalgorithm = \"leaky-queue\"\nmax-queue = 7",
    ];
    notes.reader().parse("f.toml", &(stores.to_owned() + &route(&policies))).unwrap();
    let mut noted = notes.take();
    noted.sort_unstable();
    assert_eq!(
        noted,
        [
            "noted p1@/a",
            "one p0@/a",
            "one p3@/a: Some(7) None",
            "open noted of noted: h:2 3 None",
            "open one of noted: h:1 0 Some(50ms)",
        ]
    );
}

#[test]
fn the_only_store_is_the_default() {
    let notes = Notes::default();
    let store = "[store.noted]\nurl = \"h\"\n";
    notes.reader().parse("f.toml", &(store.to_owned() + &route(&[""]))).unwrap();
    assert_eq!(notes.take()[1..], ["noted p0@/a"]);

    let two = store.to_owned() + "[store.other]\nkind = \"noted\"\nurl = \"h\"\n";
    let error = notes.reader().parse("f.toml", &(two.clone() + &route(&[""]))).unwrap_err().to_string();
    assert_eq!(error, "f.toml:9: the file has several stores; add store = \"noted\" or \"other\" or \"memory\"");
    // If the file adds a store, policies without `store` do not move to it.
    let redis = "[redis]\nurl = \"redis://127.0.0.1:1\"\n".to_owned() + store;
    let error = notes.reader().parse("f.toml", &(redis + &route(&[""]))).unwrap_err().to_string();
    assert_eq!(error, "f.toml:8: the file has several stores; add store = \"noted\" or \"redis\" or \"memory\"");
    // These policies are in memory in any case.
    notes.reader().parse("f.toml", &(two + &route(&["algorithm = \"slow-down\""]))).unwrap();
}

#[test]
fn mistakes_about_stores_have_their_lines() {
    let noted = |lines: &str| format!("[store.noted]\n{lines}\n");
    for (file, expected) in [
        (
            noted("ulr = \"secret\""),
            "f.toml:2: unknown field `ulr` (did you mean `url`?), expected one of `url`, `pool-size`, `timeout`",
        ),
        (noted("pool-size = 1"), "f.toml:1: missing field `url`"),
        (noted("url = 5"), "f.toml:2: url: write a string"),
        (noted("url = \"\""), "f.toml:2: url is empty; write the address"),
        (noted("url = \"secret\"\npool-size = \"secret\""), "f.toml:3: pool-size: write u8"),
        (
            noted("url = \"h\"\ntimeout = \"soon\""),
            "f.toml:3: timeout = \"soon\" is not a time; write 250ms, 1s, 1m, 1h or 1day",
        ),
        (
            noted("url = \"h\"\ntimeout = \"0s\""),
            "f.toml:3: timeout = \"0s\": the time is 0; write a time such as 50ms",
        ),
        (noted("kind = 7\nurl = \"h\""), "f.toml:2: kind: write a text in quotation marks, such as \"redis\""),
        (
            "[store]\nnoted = 1\n".to_owned(),
            "f.toml:2: store.noted is no table; a store has a name: write [store.noted], or another name in place of noted",
        ),
        (
            "[store.memory]\nkind = \"noted\"\nurl = \"h\"\n".to_owned(),
            "f.toml:1: store = \"memory\" is this process; give the store another name",
        ),
        (
            "[store.disk]\nurl = \"h\"\n".to_owned(),
            "f.toml:1: this program knows no store of the kind `disk`; write one of noted, redis, as the name or as kind = \"...\", or let the program add the kind (`ConfigReader::store`)",
        ),
    ] {
        let text = file + &route(&["store = \"memory\""]);
        let error = Notes::default().reader().parse("f.toml", &text).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
        let problems = Notes::default().reader().problems("f.toml", &text);
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected], "{text}");
    }
}

#[test]
fn a_store_says_what_it_lacks() {
    for (policy, expected) in [
        (
            "store = \"disk\"",
            "f.toml:10: store = \"disk\": the file has no [store.disk]; write that table, with kind = \"noted\" or \"redis\", or store = \"noted\" or \"memory\"",
        ),
        ("algorithm = \"leaky-bucket\"", "f.toml:8: it leaks; choose token-bucket"),
        (
            "algorithm = \"sliding-window\"",
            "f.toml:6: store `noted` has no such limits; write store = \"memory\", or the name of a store that has",
        ),
        (
            "store = \"noted\"\nalgorithm = \"sliding-window\"",
            "f.toml:9: store `noted` has no such limits; write store = \"memory\", or the name of a store that has",
        ),
        (
            "store = \"noted\"\nalgorithm = \"slow-down\"",
            "f.toml:9: store = \"noted\": slow-down is the state of this process; remove it, or write store = \"memory\"",
        ),
    ] {
        let text = "[store.noted]\nurl = \"h\"\n".to_owned() + &route(&[policy]);
        let error = Notes::default().reader().parse("f.toml", &text).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
    }
    let in_flight = "[store.noted]\nurl = \"h\"\n[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"concurrency\"\nlimit = 1\n";
    let error = Notes::default().reader().parse("f.toml", in_flight).unwrap_err().to_string();
    assert!(error.starts_with("f.toml:6: store `noted` has no limits of requests in flight; "), "{error}");
}

/// An address may have a password, and a name appears in comments in statements.
#[test]
fn addresses_and_odd_names_are_not_repeated() {
    let secret = "noted://u:hunter2@h/d";
    for file in [
        format!("[store.\"{secret}\"]\nkind = \"noted\"\nurl = \"h\"\n{}", route(&["store = \"memory\""])),
        format!("[store.\"a\\nDROP TABLE x;\"]\nkind = \"noted\"\nurl = \"h\"\n{}", route(&["store = \"memory\""])),
        format!("[store.one]\nkind = \"{secret}\"\nurl = \"h\"\n{}", route(&["store = \"memory\""])),
        format!("[store.noted]\nurl = \"h\"\n{}", route(&[&format!("store = \"{secret}\"")])),
    ] {
        let error = Notes::default().reader().parse("f.toml", &file).unwrap_err().to_string();
        assert!(!error.contains("hunter2") && !error.contains("DROP"), "{error}");
    }
}

#[test]
fn a_replay_opens_no_store() {
    let notes = Notes::default();
    let text =
        "[store.noted]\nurl = \"\"\n".to_owned() + &route(&["", "store = \"noted\"\nalgorithm = \"leaky-queue\""]);
    notes.reader().replay(ManualClock::new()).parse("f.toml", &text).unwrap();
    assert!(notes.take().is_empty());
}

#[test]
fn a_change_keeps_the_stores() {
    let notes = Notes::default();
    let text =
        |url: &str, limit: u32| format!("[store.noted]\nurl = \"{url}\"\n{}", route(&[&format!("cost = {limit}")]));
    let mut config = notes.reader().parse("f.toml", &text("h", 1)).unwrap();
    let error = config.change("f.toml", &text("other", 1)).unwrap_err().to_string();
    assert!(error.starts_with("f.toml:1: [store] differs from the one at the start; undo this change"), "{error}");
    notes.take();
    config.change("f.toml", &text("h", 1).replace("limit = 1", "limit = 2")).unwrap();
    assert_eq!(notes.take(), ["noted p0@/a"]);
}

/// The program's policies are in code, so the file's only table is its store.
#[test]
fn a_file_without_routes_has_one_store() {
    let open = |text: &str| {
        let notes = Notes::default();
        let store = notes.reader().open_store("f.toml", text);
        store.map(|store| (store, notes)).map_err(|error| error.to_string())
    };
    let quota = tower_sluice::Quota::per_hour(1);
    for text in ["[store.noted]\nurl = \"h\"\n", "[store.pg]\nkind = \"noted\"\nurl = \"h\"\n"] {
        let (store, notes) = open(text).unwrap();
        store.rate_limiter("pace", tower_sluice::TokenBucket::new(quota).into()).unwrap();
        assert!(notes.take()[1].ends_with(" pace"), "{text}");
        assert_eq!(store.balance("bought").err(), Some(NoLimiter::Unsupported));
    }
    // Memory supports all kinds of limiters.
    let (store, notes) = open("# No server.\n").unwrap();
    store.rate_limiter("pace", tower_sluice::SlidingWindow::new(quota).into()).unwrap();
    store.queue("queue", QueueSpec::new(quota)).unwrap();
    store.concurrency("in-flight", ConcurrencySpec::new(8)).unwrap();
    store.balance("bought").unwrap();
    assert!(notes.take().is_empty());
    let route = "[store.noted]\nurl = \"h\"\n".to_owned() + &route(&[""]);
    for (text, expected) in [
        ("[store.noted]\nulr = \"h\"\n", "f.toml:2: unknown field `ulr`"),
        ("[store.disk]\n", "f.toml:1: this program knows no store of the kind `disk`"),
        ("[store.noted]\nurl = \"h\"\n[redis]\nurl = \"redis://h\"\n", "f.toml:5: the file has several stores"),
        (&route, "f.toml:3: this program has its limits in code, and takes a store from this file; remove route"),
        ("[stores.noted]\n", "f.toml:1: unknown field `stores`"),
        ("[store]\n", "f.toml:1: [store] names no store; write [store.NAME]"),
    ] {
        let error = open(text).err().unwrap();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// The program must accept the cure that it suggests.
#[test]
fn programs_without_redis_never_suggest_it() {
    let reader = || Config::reader().store("noted", |table| Notes::default().open(table));
    let error = reader().parse("f.toml", &route(&["store = \"redis\""])).unwrap_err().to_string();
    let expected = "the file has no [store.redis]; write that table, with kind = \"noted\", or store = \"memory\"";
    assert_eq!(error, format!("f.toml:8: store = \"redis\": {expected}"));
    let error = Config::reader().parse("f.toml", &route(&["store = \"redis\""])).unwrap_err().to_string();
    assert_eq!(error, "f.toml:8: store = \"redis\": this program knows no servers; write store = \"memory\"");
}
