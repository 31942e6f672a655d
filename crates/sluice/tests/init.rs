//! The files from `sluice init`: valid, and as their headings say.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TASKS: [&str; 5] = ["api", "login", "site", "llm", "uploads"];

fn sluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).output().unwrap()
}

fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).unwrap()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("init-{}-{name}", std::process::id()))
}

/// A request in a log.
struct Logged {
    second: u32,
    /// The last byte or bytes in its address.
    client: u16,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
}

fn request(second: u32, client: u16, path: &'static str) -> Logged {
    Logged { second, client, path, headers: Vec::new() }
}

impl Logged {
    /// Adds an API key, and perhaps a plan that the gateway sets.
    fn key(self, key: &str, plan: Option<&str>) -> Self {
        let plan = plan.map(|plan| ("X-Plan", plan.to_owned()));
        let headers = [Some(("X-Api-Key", key.to_owned())), plan].into_iter().flatten().collect();
        Self { headers, ..self }
    }

    /// Formats the request as a line in Traefik's log, in March 2026.
    fn line(&self) -> String {
        let begin = 1_772_438_400;
        let mut line = serde_json::json!({
            "time": begin + u64::from(self.second),
            "ClientHost": format!("192.0.{}.{}", self.client / 256, self.client % 256),
            "RequestMethod": "GET",
            "RequestPath": self.path,
            "DownstreamStatus": 200,
        });
        for (name, value) in &self.headers {
            line[format!("request_{name}")] = value.as_str().into();
        }
        line.to_string()
    }
}

/// How many requests each policy in a task's file rejects.
fn rejected(name: &str, task: &str, requests: impl IntoIterator<Item = Logged>) -> BTreeMap<String, u64> {
    let (config, log) = (path(&format!("{name}.toml")), path(&format!("{name}.log")));
    fs::write(&config, sluice(&["init", task]).stdout).unwrap();
    fs::write(&log, requests.into_iter().map(|request| request.line() + "\n").collect::<String>()).unwrap();
    let output = sluice(&["replay", "--json", "--config", config.to_str().unwrap(), log.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["log"]["unreadable"], 0);
    fs::remove_file(config).unwrap();
    fs::remove_file(log).unwrap();
    let policies = report["configurations"][0]["policies"].as_array().unwrap();
    let rejected = policies
        .iter()
        .map(|policy| (policy["policy"].as_str().unwrap().to_owned(), policy["rejected"].as_u64().unwrap()));
    rejected.filter(|(_, rejected)| *rejected > 0).collect()
}

/// The expected result from [`rejected`].
fn only<const N: usize>(policies: [(&str, u64); N]) -> BTreeMap<String, u64> {
    policies.into_iter().map(|(policy, rejected)| (policy.to_owned(), rejected)).collect()
}

#[test]
fn each_file_is_valid_and_listed() {
    let listed = sluice(&["init"]);
    assert!(listed.status.success());
    for task in TASKS {
        let file = path(&format!("valid-{task}.toml"));
        let file_name = file.to_str().unwrap();
        let written = sluice(&["init", task, "--output", file_name]);
        assert!(written.status.success(), "{}", text(&written.stderr));
        let content = fs::read_to_string(&file).unwrap();
        assert_eq!(content.as_bytes(), sluice(&["init", task]).stdout);
        let heading = content.lines().next().unwrap().strip_prefix("# ").unwrap();
        assert!(text(&listed.stdout).contains(&format!("\n{task}\n    {heading}")), "{}", text(&listed.stdout));

        let checked = sluice(&["check", file_name]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        // All policies have an effect in the service, too.
        assert!(!text(&checked.stdout).contains("have no effect"), "{}", text(&checked.stdout));

        fs::write(&file, "mine").unwrap();
        let again = sluice(&["init", task, "--output", file_name]);
        assert_eq!(again.status.code(), Some(1));
        assert!(text(&again.stderr).contains("it is not overwritten"), "{}", text(&again.stderr));
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        fs::remove_file(file).unwrap();
    }
    let unknown = sluice(&["init", "shop"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("[possible values: api, login, site, llm, uploads]"));
}

#[test]
fn the_api_limits_keys_by_plan() {
    let free = (0..30).map(|_| request(0, 1, "/api/things").key("a", None));
    let pro = (0..120).map(|number| request(0, 2 + number / 40, "/api").key("b", Some("pro")));
    assert_eq!(rejected("plans", "api", free.chain(pro)), only([("pace", 10 + 20)]));
    // One each second is within 60 a minute, but all together exceed the month's limit.
    let month = (0..10_050).map(|second| request(second, 1, "/api").key("a", None));
    assert_eq!(rejected("month", "api", month), only([("month", 50)]));
    let pro = (0..10_050).map(|second| request(second, 1, "/api").key("a", Some("pro")));
    assert_eq!(rejected("pro-month", "api", pro), only([]));
    let guesses = (0..60).map(|number| request(0, 1, "/api").key(&number.to_string(), None));
    assert_eq!(rejected("guesses", "api", guesses), only([("address", 10)]));
    let health = (0..200).map(|_| request(0, 1, "/healthz"));
    assert_eq!(rejected("health", "api", health), only([]));
}

#[test]
fn the_login_bans_who_keeps_trying() {
    let person = [request(0, 1, "/login"), request(5, 1, "/login"), request(9, 1, "/verify")];
    let pages = (0..3).map(|_| request(10, 2, "/login")).chain((0..3).map(|_| request(11, 2, "/verify")));
    let machine = (0..30).map(|_| request(20, 3, "/login"));
    // A minute later, it would have attempts again without the ban.
    let banned = [request(200, 3, "/login")];
    let after = [request(20 + 15 * 60 + 1, 3, "/login")];
    let all = person.into_iter().chain(pages).chain(machine).chain(banned).chain(after);
    assert_eq!(rejected("login", "login", all), only([("attempts", 1 + 25 + 1)]));
    let many = (0..290).map(|client| request(0, client, "/login"));
    assert_eq!(rejected("many", "login", many), only([]));
}

#[test]
fn the_site_limits_pages_and_searches() {
    let pages = (0..30).map(|_| request(0, 1, "/news/today"));
    let images = (0..100).map(|_| request(0, 1, "/assets/logo.png"));
    let searches = (0..5).map(|_| request(0, 1, "/search?q=tea"));
    // Four seconds later, pages have 20 again, and searches 2.
    let later = (0..21).map(|_| request(4, 1, "/")).chain((0..3).map(|_| request(4, 1, "/search")));
    let all = pages.chain(images).chain(searches).chain(later);
    assert_eq!(rejected("site", "site", all), only([("pages", 10 + 1), ("searches", 3 + 1)]));
}

#[test]
fn uploads_are_limited_and_their_parts_not() {
    let begun = (0..7).map(|_| request(0, 1, "/uploads"));
    let parts = (0..200).map(|_| request(1, 1, "/uploads/4711"));
    assert_eq!(rejected("uploads", "uploads", begun.chain(parts)), only([("uploads", 2)]));
    let day = (0..120).map(|minute| request(minute * 60, 1, "/uploads"));
    assert_eq!(rejected("day", "uploads", day), only([("uploads-a-day", 20)]));
    let all = (0..30).map(|client| request(0, client, "/uploads"));
    assert_eq!(rejected("all", "uploads", all), only([("all-uploads", 10)]));
}
