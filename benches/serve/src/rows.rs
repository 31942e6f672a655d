//! The measured rows.

use crate::protocol::Protocol;
use crate::server::{Program, Settings};

#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    pub program: Program,
    pub settings: Settings,
    pub protocol: Protocol,
    /// The rows that this one is compared to: Limitador's, and throttlecrab's.
    pub peers: [Option<&'static str>; 2],
    /// Whether its memory is measured.
    pub is_sized: bool,
}

const LIMITADOR: &str = "limitador, gRPC";
const LIMITADOR_FIELDS: &str = "limitador, gRPC, with fields";
const LIMITADOR_MANY: &str = "limitador, gRPC, 100 more rules";
const THROTTLECRAB: &str = "throttlecrab, gRPC";
const THROTTLECRAB_HTTP: &str = "throttlecrab, HTTP";

const ROWS: [Row; 10] = [
    Row {
        name: LIMITADOR,
        program: Program::Limitador,
        settings: Settings::Bare,
        protocol: Protocol::RateLimitService,
        peers: [None, None],
        is_sized: true,
    },
    Row {
        name: "ours, gRPC, limitador's file",
        program: Program::Ours,
        settings: Settings::Bare,
        protocol: Protocol::RateLimitService,
        peers: [Some(LIMITADOR), Some(THROTTLECRAB)],
        is_sized: true,
    },
    Row {
        name: LIMITADOR_FIELDS,
        program: Program::Limitador,
        settings: Settings::WithFields,
        protocol: Protocol::RateLimitService,
        peers: [None, None],
        is_sized: false,
    },
    Row {
        name: "ours, gRPC, TOML, with fields",
        program: Program::Ours,
        settings: Settings::WithFields,
        protocol: Protocol::RateLimitService,
        peers: [Some(LIMITADOR_FIELDS), Some(THROTTLECRAB)],
        is_sized: true,
    },
    Row {
        name: LIMITADOR_MANY,
        program: Program::Limitador,
        settings: Settings::ManyRules,
        protocol: Protocol::RateLimitService,
        peers: [None, None],
        is_sized: false,
    },
    Row {
        name: "ours, gRPC, limitador's file, 100 more rules",
        program: Program::Ours,
        settings: Settings::ManyRules,
        protocol: Protocol::RateLimitService,
        peers: [Some(LIMITADOR_MANY), None],
        is_sized: false,
    },
    Row {
        name: THROTTLECRAB,
        program: Program::Throttlecrab,
        settings: Settings::Bare,
        protocol: Protocol::ThrottlecrabGrpc,
        peers: [None, None],
        is_sized: true,
    },
    Row {
        name: THROTTLECRAB_HTTP,
        program: Program::Throttlecrab,
        settings: Settings::Bare,
        protocol: Protocol::ThrottlecrabHttp,
        peers: [None, None],
        is_sized: false,
    },
    Row {
        name: "ours, HTTP, TOML, with fields",
        program: Program::Ours,
        settings: Settings::WithFields,
        protocol: Protocol::Auth,
        peers: [None, Some(THROTTLECRAB_HTTP)],
        is_sized: false,
    },
    Row {
        name: "throttlecrab, Redis protocol",
        program: Program::Throttlecrab,
        settings: Settings::Bare,
        protocol: Protocol::ThrottlecrabRedis,
        peers: [None, None],
        is_sized: false,
    },
];

impl Row {
    pub fn is_ours(&self) -> bool {
        self.program == Program::Ours
    }
}

/// The rows whose names contain one of `only`, and their peers; all, if `only` is empty. Returns the names of rows
/// without an installed program, too.
pub fn chosen(only: &[String]) -> (Vec<Row>, Vec<&'static str>) {
    let is_named = |row: &&Row| only.is_empty() || only.iter().any(|text| row.name.contains(text.as_str()));
    let named: Vec<_> = ROWS.iter().filter(is_named).collect();
    let is_peer = |row: &Row| named.iter().any(|other| other.peers.contains(&Some(row.name)));
    let is_chosen = |row: &&Row| named.iter().any(|other| other.name == row.name) || is_peer(row);
    let (here, missing): (Vec<_>, Vec<_>) = ROWS.iter().filter(is_chosen).partition(|row| row.program.path().is_some());
    (here.into_iter().copied().collect(), missing.into_iter().map(|row| row.name).collect())
}
