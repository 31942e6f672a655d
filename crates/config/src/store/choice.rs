//! Chooses the store for each policy.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tower_sluice::Limiter;
use tower_sluice::time::Clock;

use super::memory::{self, Memory, MemorySettings};
use super::{ConcurrencySpec, NoLimiter, OpenTable, QueueSpec, RateSpec, Store, StoreTable};
use crate::error::ConfigError;
use crate::format::{AlgorithmName, RawConfig, RawPolicy};
use crate::source::SourceText;

const MEMORY: &str = "memory";
const REDIS: &str = "redis";

/// The kinds of stores that a program has, by name.
#[derive(Clone, Default)]
pub(crate) struct Kinds(pub(crate) BTreeMap<String, Arc<OpenTable>>);

/// The stores for all policies in a file.
#[derive(Clone)]
pub(crate) struct Stores {
    mode: StoreMode,
    /// By their names in the file. A store that is not open stands for a server that a replay does not ask, or whose
    /// settings are wrong.
    named: BTreeMap<String, Option<Arc<dyn Store>>>,
    /// The kinds that the program has.
    kinds: Vec<String>,
}

/// The stores that a file names.
#[derive(Default)]
pub(crate) struct NamedStores<'a> {
    /// Whether it has a `[redis]`, which may be wrong.
    pub(crate) has_redis: bool,
    /// Its `[redis]`, if that has all required keys, and no others.
    pub(crate) redis: Option<StoreTable<'a>>,
    /// Its `[store]`.
    pub(crate) tables: Option<&'a Spanned<DeValue<'a>>>,
}

/// The purpose for which the policies are built.
#[derive(Clone)]
pub(crate) enum StoreMode {
    InForce,
    /// A replay: all in memory, on this clock.
    Replay(ReplayClock),
    /// To find mistakes only: memory has no room for keys. For a replay, servers are not opened.
    Checked {
        is_replay: bool,
    },
}

/// A replay's clock.
#[derive(Clone)]
pub(crate) struct ReplayClock(pub(crate) Arc<dyn Clock>);

impl Stores {
    /// Opens a file's stores. Adds the mistakes to `problems`, and leaves a store with a mistake closed.
    ///
    /// `redis` is the program's Redis, which replaces `[redis]`, whether or not the file has one. The file's is opened
    /// nevertheless, so that its mistakes are found.
    pub(crate) fn open(
        source: &SourceText<'_>,
        file: NamedStores<'_>,
        redis: Option<Arc<dyn Store>>,
        mode: StoreMode,
        kinds: &Kinds,
        problems: &mut Vec<ConfigError>,
    ) -> Self {
        let mut named = BTreeMap::new();
        let opens = matches!(mode, StoreMode::InForce | StoreMode::Checked { is_replay: false });
        if file.has_redis || redis.is_some() {
            named.insert(REDIS.to_owned(), None);
        }
        if let Some(table) = file.redis.filter(|_| opens) {
            match kinds.open_redis(&table) {
                Ok(store) => drop(named.insert(REDIS.to_owned(), Some(store))),
                Err(problem) => problems.push(problem),
            }
        }
        let is_of_program = redis.is_some() && !file.has_redis;
        if let Some(redis) = redis.filter(|_| opens) {
            named.insert(REDIS.to_owned(), Some(redis));
        }
        let tables = file.tables.and_then(|tables| tables.get_ref().as_table());
        if let (Some(all), Some(true)) = (file.tables, tables.map(DeTable::is_empty)) {
            let problem = "[store] names no store; write [store.NAME], such as [store.postgres], or remove it";
            problems.push(source.error(&all.span(), problem));
        }
        for (name, table) in tables.into_iter().flat_map(DeTable::iter) {
            let opened = StoreTable::new(source, name, table).and_then(|table| {
                if named.contains_key(table.name()) {
                    let name = table.name();
                    let problem = match is_of_program {
                        true => format!(
                            "[store.{name}] has the name of the Redis that the program was given; give it another"
                        ),
                        false => format!("[{name}] and [store.{name}] have the same name; give one of them another"),
                    };
                    return Err(table.error_of_kind(problem));
                }
                if opens { kinds.open(&table).map(Some) } else { Ok(None) }
            });
            match opened {
                Ok(store) => drop(named.insert(name.get_ref().to_string(), store)),
                Err(problem) => {
                    // Policies may name it.
                    named.entry(name.get_ref().to_string()).or_default();
                    problems.push(problem);
                }
            }
        }
        Self { mode, named, kinds: kinds.0.keys().cloned().collect() }
    }

    /// Opens the only store in a file without routes, or memory if there is none.
    pub(crate) fn open_only(
        source: &SourceText<'_>,
        redis: Option<Arc<dyn Store>>,
        kinds: &Kinds,
    ) -> Result<Arc<dyn Store>, ConfigError> {
        let _: RawConfig = source.parse_toml()?;
        let file = source.parse_table()?;
        let file = file.get_ref();
        if let Some((name, _)) = file.iter().find(|(name, _)| !matches!(name.get_ref().as_ref(), "redis" | "store")) {
            let problem = format!(
                "this program has its limits in code, and takes a store from this file; remove {}",
                name.get_ref()
            );
            return Err(source.error(&name.span(), problem));
        }
        let named = NamedStores {
            has_redis: file.contains_key("redis"),
            redis: StoreTable::redis(source, file),
            tables: file.get("store"),
        };
        let mut problems = Vec::new();
        let stores = Self::open(source, named, redis, StoreMode::InForce, kinds, &mut problems);
        if let Some(problem) = problems.into_iter().next() {
            return Err(problem);
        }
        let mut open = stores.named.into_values().flatten();
        match (open.next(), open.next()) {
            (None, _) => Ok(memory::memory()),
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => Err(source.error(&source.end(), "the file has several stores; leave one of them")),
        }
    }

    pub(crate) fn migrations(&self) -> Vec<(&str, String)> {
        let stores = self.named.iter().filter_map(|(name, store)| Some((name, store.as_ref()?)));
        stores.filter_map(|(name, store)| Some((name.as_str(), store.migration()?))).collect()
    }

    fn knows(&self, kind: &str) -> bool {
        self.kinds.iter().any(|known| known == kind)
    }

    /// Says which keys a table with this name needs in addition, if its name isn't a kind.
    fn kind_of(&self, name: &str) -> String {
        match self.knows(name) {
            true => String::new(),
            false => format!(", with kind = {}", quoted(self.kinds.iter().map(String::as_str))),
        }
    }

    /// The names that a policy's `store` may have.
    fn names(&self) -> String {
        quoted(self.named.keys().map(String::as_str).chain([MEMORY]))
    }
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or ")
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").field("named", &self.named.keys()).finish_non_exhaustive()
    }
}

impl Kinds {
    fn open(&self, table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
        if let Some(open) = self.0.get(table.kind()) {
            return open(table);
        }
        // An address may have a password.
        let kind = if table.kind().contains("://") { String::new() } else { format!(" `{}`", table.kind()) };
        let known: Vec<_> = self.0.keys().map(String::as_str).collect();
        let cure = match &*known {
            [] => String::new(),
            known => format!("write one of {}, as the name or as kind = \"...\", or ", known.join(", ")),
        };
        let problem = format!(
            "this program knows no store of the kind{kind}; {cure}let the program add the kind (`ConfigReader::store`)"
        );
        Err(table.error_of_kind(problem))
    }

    /// Opens the store for `[redis]`.
    fn open_redis(&self, table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
        let open = self.0.get(REDIS).ok_or_else(|| {
            let problem = "this program knows no Redis; let it add the kind \"redis\" (`ConfigReader::store`, with \
                           `tower_sluice_redis::file::open`)";
            table.error("url", problem)
        })?;
        open(table)
    }
}

/// One policy's store.
#[derive(Clone)]
pub(crate) struct StoreSpec {
    place: Place,
    /// The store's name in the file.
    store: String,
    /// Where the file names it, otherwise the policy's place.
    at: Range<usize>,
}

#[derive(Clone)]
enum Place {
    Memory(Memory),
    /// Memory in place of a server.
    Replaced(Memory),
    /// A server, and the policy's name there.
    Server(Arc<dyn Store>, String),
}

impl StoreSpec {
    /// Returns the store for a policy, whose route has `path` first.
    pub(crate) fn read(
        source: &SourceText<'_>,
        raw: &RawPolicy,
        path: &str,
        stores: &Stores,
    ) -> Result<Self, ConfigError> {
        let is_of_process = matches!(raw.algorithm.value(), AlgorithmName::SlowDown | AlgorithmName::Overload);
        let at = raw.store.as_ref().map_or_else(|| raw.name.span(), Spanned::span);
        let name = match &raw.store {
            Some(store) => store.get_ref().as_str(),
            None if stores.named.is_empty() || is_of_process => MEMORY,
            None if stores.named.len() == 1 => stores.named.keys().next().map_or(MEMORY, String::as_str),
            None => {
                let problem = format!("the file has several stores; add store = {}", stores.names());
                return Err(source.error(&at, problem));
            }
        };
        let memory = match &stores.mode {
            StoreMode::InForce => Memory::InForce,
            StoreMode::Replay(clock) => Memory::Replay(Arc::clone(&clock.0)),
            StoreMode::Checked { .. } => Memory::Checked,
        };
        let place = match stores.named.get(name) {
            None if name == MEMORY => Place::Memory(memory),
            None if name == REDIS && stores.knows(REDIS) => {
                let problem = "store = \"redis\" needs a server; write [redis] with url = \"redis://HOST:PORT\" at the top of the file";
                return Err(source.error(&at, problem));
            }
            None => {
                // An address may have a password.
                let problem = if name.contains("://") {
                    format!(
                        "store has an address; write it as url of a table [store.NAME], and here store = \"NAME\" or {}",
                        stores.names()
                    )
                } else if stores.kinds.is_empty() {
                    format!("store = {name:?}: this program knows no servers; write store = \"memory\"")
                } else {
                    format!(
                        "store = {name:?}: the file has no [store.{name}]; write that table{}, or store = {}",
                        stores.kind_of(name),
                        stores.names()
                    )
                };
                return Err(source.error(&at, problem));
            }
            Some(None) => Place::Replaced(memory),
            // Policy names cannot contain an @, so two different pairs never make one name.
            Some(Some(store)) => Place::Server(Arc::clone(store), format!("{}@{path}", raw.name.get_ref())),
        };
        Ok(Self { place, store: name.to_owned(), at })
    }

    /// Whether the file keeps the policy in memory, so that the settings for policies in memory apply.
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    /// The clock of a replay.
    pub(crate) fn replay_clock(&self) -> Option<Arc<dyn Clock>> {
        match &self.place {
            Place::Memory(Memory::Replay(clock)) | Place::Replaced(Memory::Replay(clock)) => Some(Arc::clone(clock)),
            _ => None,
        }
    }

    /// Checks that the store can keep a limit for some keys. If it cannot, that is a mistake at `unfit_at`.
    pub(crate) fn check_fit(
        &self,
        source: &SourceText<'_>,
        rate: &RateSpec,
        unfit_at: &Range<usize>,
    ) -> Result<(), ConfigError> {
        match &self.place {
            Place::Memory(_) | Place::Replaced(_) => Ok(()),
            Place::Server(store, _) => {
                store.check_fit(rate).map_err(|problem| self.error(source, &problem, "such limits", unfit_at))
            }
        }
    }

    /// Makes a limiter over time. If the store cannot keep it, that is a mistake at `unfit_at`.
    pub(crate) fn limiter(
        self,
        source: &SourceText<'_>,
        rate: RateSpec,
        settings: MemorySettings,
        unfit_at: &Range<usize>,
    ) -> Result<Arc<dyn Limiter>, ConfigError> {
        match self.place {
            Place::Memory(memory) | Place::Replaced(memory) => Ok(memory.rate_limiter(rate, settings)),
            Place::Server(ref store, ref name) => {
                store.rate_limiter(name, rate).map_err(|problem| self.error(source, &problem, "such limits", unfit_at))
            }
        }
    }

    /// Makes a limit on requests in flight.
    pub(crate) fn concurrency(
        self,
        source: &SourceText<'_>,
        spec: ConcurrencySpec,
        settings: MemorySettings,
    ) -> Result<Arc<dyn Limiter>, ConfigError> {
        match self.place {
            Place::Memory(_) | Place::Replaced(_) => Ok(memory::concurrency(spec, settings)),
            Place::Server(ref store, ref name) => store
                .concurrency(name, spec)
                .map_err(|problem| self.error(source, &problem, "limits of requests in flight", &self.at)),
        }
    }

    /// Makes balances.
    pub(crate) fn balance(
        self,
        source: &SourceText<'_>,
        settings: MemorySettings,
    ) -> Result<Arc<dyn Limiter>, ConfigError> {
        match self.place {
            Place::Memory(memory) | Place::Replaced(memory) => Ok(memory::balance(memory, settings)),
            Place::Server(ref store, ref name) => {
                store.balance(name).map_err(|problem| self.error(source, &problem, "balances", &self.at))
            }
        }
    }

    /// Makes a queue. If the store cannot keep it, that is a mistake at `unfit_at`.
    pub(crate) fn queue(
        self,
        source: &SourceText<'_>,
        spec: QueueSpec,
        settings: MemorySettings,
        unfit_at: &Range<usize>,
    ) -> Result<Arc<dyn Limiter>, ConfigError> {
        match self.place {
            Place::Memory(_) | Place::Replaced(_) => Ok(memory::queue(spec, settings)),
            Place::Server(ref store, ref name) => {
                store.queue(name, spec).map_err(|problem| self.error(source, &problem, "queues", unfit_at))
            }
        }
    }

    fn error(&self, source: &SourceText<'_>, problem: &NoLimiter, kind: &str, unfit_at: &Range<usize>) -> ConfigError {
        match problem {
            NoLimiter::Unfit(problem) => source.error(unfit_at, problem),
            NoLimiter::Unsupported => {
                let problem = format!(
                    "store `{}` has no {kind}; write store = \"memory\", or the name of a store that has",
                    self.store
                );
                source.error(&self.at, problem)
            }
        }
    }
}
