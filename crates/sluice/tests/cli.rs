//! The program as users run it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn sluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).current_dir(root()).output().unwrap()
}

fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).unwrap()
}

/// A file for this test, in the folder that Cargo provides.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sluice-{}-{name}", std::process::id()));
    fs::write(&path, content).unwrap();
    path
}

const CONFIG: &str = "crates/sluice/examples/limits.toml";
const LOG: &str = "crates/sluice/examples/access.log";

/// The output that a document shows below a command.
fn shown(page: &str, command: &str) -> String {
    let page = fs::read_to_string(root().join(page)).unwrap();
    let mut lines = page.lines().skip_while(|line| !line.ends_with(command));
    assert!(lines.next().is_some(), "the page does not show {command}");
    lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_guide_shows_what_the_program_prints() {
    for arguments in [vec!["check", CONFIG], vec!["replay", "--config", CONFIG, "--suggest", "99", LOG]] {
        let output = sluice(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let command = format!("sluice -- {}", arguments.join(" "));
        let page = shown("docs/guide/which_limit.md", &command);
        assert_eq!(text(&output.stdout), page, "$ cargo run -p {command}\n{}", text(&output.stdout));
        assert!(output.stderr.is_empty(), "no progress without a terminal: {}", text(&output.stderr));
    }
}

#[test]
fn the_sample_log_is_small() {
    assert!(fs::metadata(root().join(LOG)).unwrap().len() <= 200_000);
}

#[test]
fn standard_input_and_gzip_are_read() {
    let plain = fs::read(root().join(LOG)).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&plain).unwrap();
    let zipped = encoder.finish().unwrap();
    let from_file = sluice(&["replay", "--config", CONFIG, LOG]);
    for input in [plain, zipped] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["replay", "--config", CONFIG, "-"])
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stdout), text(&from_file.stdout).replacen(LOG, "-", 1));
    }
}

#[test]
fn json_and_the_plot_are_for_programs() {
    let plot = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sluice-{}.svg", std::process::id()));
    let arguments =
        ["replay", "--config", CONFIG, "--json", "--suggest", "99.9", "--plot", plot.to_str().unwrap(), LOG];
    let output = sluice(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["log"]["unreadable"], 1);
    let policies = report["configurations"][0]["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 4);
    for policy in policies {
        let number = |name: &str| policy[name].as_u64().unwrap();
        assert_eq!(number("requests"), number("admitted") + number("rejected"));
        let bins = |name: &str| {
            policy["timeline"][name].as_array().unwrap().iter().map(|bin| bin.as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!((bins("admitted"), bins("rejected")), (number("admitted"), number("rejected")));
    }
    let svg = fs::read_to_string(&plot).unwrap();
    fs::remove_file(plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.matches("<path").count() == 8);
    // A legend, and for each policy its highest count and the same times.
    assert_eq!(svg.matches(">admitted</text>").count() + svg.matches(">rejected</text>").count(), 2, "{svg}");
    assert_eq!(svg.matches(" in 32 s</text>").count(), 4, "{svg}");
    let times: Vec<_> = svg.lines().filter(|line| line.contains(">2026-03-02 ")).collect();
    let times: Vec<_> = times.iter().map(|line| line.split(['>', '<']).nth(2).unwrap()).collect();
    assert_eq!(times.len(), 20, "{svg}");
    assert!(times.chunks(5).all(|panel| panel == &times[..5] && panel.is_sorted()), "{times:?}");
}

#[test]
fn two_configurations_are_compared() {
    let stricter = fs::read_to_string(root().join(CONFIG)).unwrap().replace("burst = 20", "burst = 5");
    let stricter = file("stricter.toml", &stricter);
    let output = sluice(&["replay", "--config", CONFIG, "--compare", stricter.to_str().unwrap(), LOG]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let rejected: Vec<_> = table.lines().filter(|line| line.starts_with("  rejected")).collect();
    assert_eq!(rejected.len(), 4, "{table}");
    // Only the policy that differs has other numbers.
    let is_different = |line: &&&str| {
        let numbers: Vec<_> =
            line.split_whitespace().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).collect();
        numbers.windows(2).any(|pair| pair[0] != pair[1])
    };
    assert_eq!(rejected.iter().filter(is_different).count(), 1, "{table}");
}

#[test]
fn a_comparison_includes_suggestions_and_headings() {
    let other = fs::read_to_string(root().join(CONFIG)).unwrap().replace("max-queue = 10", "max-queue = 3");
    let other = file("shorter.toml", &other);
    let reports = [CONFIG, other.to_str().unwrap()].map(|config| {
        let output = sluice(&["replay", "--config", config, "--suggest", "99", LOG]);
        text(&output.stdout).to_owned()
    });
    let output = sluice(&["replay", "--config", CONFIG, "--compare", other.to_str().unwrap(), "--suggest", "99", LOG]);
    let table = text(&output.stdout);
    let names = table.lines().find(|line| line.ends_with("shorter.toml")).unwrap();
    let columns = [CONFIG, other.to_str().unwrap()].map(|name| names.find(name).unwrap());
    let cell = |line: &str, column: usize| {
        let cell: String = line.chars().skip(column).collect();
        cell.split("  ").next().unwrap_or_default().to_owned()
    };
    for (report, column) in reports.iter().zip(columns) {
        let ways: Vec<_> = report.lines().filter(|line| line.starts_with("    limit = ")).map(str::trim).collect();
        assert_eq!(ways.len(), 7, "{report}");
        let cells: Vec<_> =
            table.lines().map(|line| cell(line, column)).filter(|cell| cell.starts_with("limit = ")).collect();
        assert_eq!(cells, ways, "{table}");
        for heading in report.lines().filter(|line| line.starts_with('/') && line.contains("  ")) {
            assert!(table.lines().any(|line| line == heading), "{heading}: {table}");
        }
    }
    // Each cell begins in its column, two spaces or more behind the one before.
    for line in table.lines().filter(|line| line.starts_with("  p50, p95") || line.starts_with("  limit")) {
        for column in columns {
            let before: String = line.chars().skip(column - 3).take(4).collect();
            assert!(before[1..].starts_with("  ") && !before.ends_with(' '), "{line}");
        }
    }
}

#[test]
fn mistakes_say_what_to_do() {
    let unknown = file("unknown.toml", "[[route]]\npath = \"/\"\nlimit = 10");
    let twice = file("twice.toml", "[[route]]\npath = \"/a/{b}\"\n[[route]]\npath = \"/a/{c}\"");
    let nonsense = file("nonsense.log", "what\never\n");
    let envoy = file("kind-envoy.yaml", "domain: shop\ndescriptors: []\n");
    let limitador = file("kind-limitador.yaml", "- {namespace: shop, max_value: 5, seconds: 90}\n");
    let other_yaml = file("kind-other.yaml", "limits: 3\n");
    let [envoy, limitador, other_yaml] = [&envoy, &limitador, &other_yaml].map(|path| path.to_str().unwrap());
    let [unknown, twice, nonsense] = [&unknown, &twice, &nonsense].map(|path| path.to_str().unwrap());
    for (arguments, code, cure) in [
        (&["check", unknown][..], 2, ":3: unknown field `limit`"),
        (&["check", twice], 2, "is already served by the route on line 2"),
        (&["check", "missing.toml"], 1, "is the path right?"),
        (&["check", "crates/sluice/examples"], 1, "no file that ends in .yaml or .yml"),
        (&["replay", "--config", envoy, LOG], 2, "give it to `sluice serve` with --envoy-config"),
        (&["replay", "--config", CONFIG, "--compare", limitador, LOG], 2, "`sluice serve` with --limitador-config"),
        (&["serve", "--config", other_yaml], 2, "not TOML; `sluice serve` reads"),
        (&["serve", "--envoy-config", CONFIG], 2, ":1: this is a configuration in TOML; give it to --config"),
        (&["serve", "--envoy-config", limitador], 2, "--limitador-config"),
        (&["serve", "--limitador-config", envoy], 2, "--envoy-config"),
        (&["serve"], 2, "<--config <FILE>|--envoy-config <FILE>|--limitador-config <FILE>>"),
        (&["serve", "--config", CONFIG, "--listen", "localhost:1"], 2, "write ADDRESS:PORT"),
        (&["serve", "--config", CONFIG, "--listen", ":18182"], 2, "write ADDRESS:PORT"),
        (&["replay", "--config", CONFIG, "missing.log"], 1, "missing.log cannot be read"),
        (&["replay", "--config", CONFIG, "crates"], 1, "it is a folder"),
        (&["replay", "--config", CONFIG, nonsense], 1, "--log-format"),
        (&["replay", "--config", unknown, LOG], 2, ":3: unknown field `limit`"),
        (&["replay", "--config", CONFIG, "--suggest", "101", LOG], 2, "above 0 and at most 100"),
        (&["replay", "--config", CONFIG], 2, "<LOG>"),
        (&[], 2, "Usage"),
    ] {
        let output = sluice(arguments);
        let problem = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {problem}");
        assert!(problem.contains(cure), "{arguments:?}: {problem}");
        assert!(!problem.contains('\u{1b}') && output.stdout.is_empty());
    }
}

/// Most managed Redis servers accept only TLS, and the program in this test cannot use it.
#[cfg(not(feature = "redis-tls"))]
#[test]
fn redis_over_tls_says_what_to_do() {
    let limits = file("tls.yaml", "domain: shop\n");
    let output =
        sluice(&["serve", "--envoy-config", limits.to_str().unwrap(), "--redis", "rediss://user:hunter2@redis"]);
    let problem = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{problem}");
    assert!(problem.contains("needs the feature `redis-tls`") && problem.contains("stunnel"), "{problem}");
    assert!(!problem.contains("hunter2"), "{problem}");
    fs::remove_file(limits).unwrap();
}

#[test]
fn a_truncated_gzip_is_named() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&fs::read(root().join(LOG)).unwrap()).unwrap();
    let whole = encoder.finish().unwrap();
    let cut = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sluice-{}-cut.gz", std::process::id()));
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let output = sluice(&["replay", "--config", CONFIG, cut.to_str().unwrap()]);
    fs::remove_file(&cut).unwrap();
    let problem = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{problem}");
    assert!(problem.contains("-cut.gz cannot be read") && problem.contains("it again"), "{problem}");
}

#[test]
fn an_empty_log_has_an_empty_report() {
    let empty = file("empty.log", "");
    let output = sluice(&["replay", "--config", CONFIG, "--suggest", "99", empty.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("no request"));
}

#[test]
fn other_services_files_are_checked() {
    let envoy = file(
        "envoy.yaml",
        "domain: shop\ndescriptors:\n- {key: user, rate_limit: {name: calls, unit: day, requests_per_unit: 5}}\n",
    );
    let limitador = file(
        "limitador.yml",
        "# limits\n- {namespace: shop, max_value: 5, seconds: 90, variables: [user], conditions: [\"method == 'GET'\"]}\n",
    );
    let toml = file(
        "exempt.toml",
        "[[route]]\npath = \"/a\"\npath-ignores = [\"case\"]\nexempt = { networks = [\"10.0.0.0/8\"] }\n[[route.policy]]\n\
         name = \"all\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\nkey = \"header:x-key\"\n\
         exempt = { headers = { x-plan = \"pro\" } }\n",
    );
    let plans = file(
        "plans.toml",
        "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"all\"\nalgorithm = \"token-bucket\"\nlimit = 10\nper = \"1m\"\n\
         key = \"header:x-key\"\nplans = { by = [\"header:x-plan\", \"header:x-key\"], limits = { \"gold + a\" = { limit = 1000, \
         burst = 50 }, \"free + a\" = { limit = 7 } } }\n",
    );
    let plans_row = "each x-key  10 at once, then 10 per minute; by header:x-plan + header:x-key: free + a 7, gold + a 1000 (50 at once)  \
                     rejected with 429";
    for (file, row) in [
        (plans, plans_row),
        (envoy, "3     shop    user (calls)  each user  5 per day, in fixed windows  rejected"),
        (limitador, "each user, if method == 'GET'  5 per 90s, in fixed windows  rejected"),
        (toml, "/a (ignores case)  all     each x-key, but not networks 10.0.0.0/8, x-plan=pro  1 per second"),
    ] {
        let output = sluice(&["check", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let table = text(&output.stdout);
        assert!(table.contains("is valid: 1 ") && table.contains(row), "{table}");
        fs::remove_file(file).unwrap();
    }
    let wrong = file("wrong.yaml", "domain: shop\ndescriptors:\n- {key: user, limit: 3}\n");
    let output = sluice(&["check", wrong.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("wrong.yaml:3: "), "{}", text(&output.stderr));
    fs::remove_file(wrong).unwrap();
}

#[test]
fn folders_are_checked_as_served() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sluice-{}-folder", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (name, domain) in [("a.yaml", "shop"), ("b.yml", "edge"), ("c.txt", "shop")] {
        let rule = "{key: user, rate_limit: {unit: day, requests_per_unit: 5}}";
        fs::write(folder.join(name), format!("domain: {domain}\ndescriptors:\n- {rule}\n")).unwrap();
    }
    let output = sluice(&["check", folder.to_str().unwrap()]);
    let table = text(&output.stdout).to_owned();
    fs::write(folder.join("d.yaml"), "domain: shop\n").unwrap();
    let twice = sluice(&["check", folder.to_str().unwrap()]);
    fs::remove_dir_all(folder).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(table.contains("is valid: 2 domains, 2 rules\n"), "{table}");
    assert!(table.contains("a.yaml:3  shop    user") && table.contains("b.yml:3   edge    user"), "{table}");
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).contains("a.yaml:1 already"), "{}", text(&twice.stderr));
}

#[test]
fn all_mistakes_of_a_file_are_printed() {
    let toml = "[[route]]\npath = \"a\"\nlimit = 3\n".repeat(30);
    let yaml = "domain: a\ndescriptors:\n- {kei: a}\n- {key: a, rate_limit: {unit: day}}\n- {key: b, limit: 3}\n";
    let [toml, yaml] = [file("many.toml", &toml), file("many.yaml", yaml)];
    for (file, lines, rest) in [(toml, 20, Some("… and 10 mistakes")), (yaml, 3, None)] {
        let output = sluice(&["check", file.to_str().unwrap()]);
        fs::remove_file(file).unwrap();
        let problems: Vec<_> = text(&output.stderr).lines().collect();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(problems.len(), lines + usize::from(rest.is_some()), "{problems:?}");
        assert!(problems[..lines].iter().all(|line| line.contains("many.")), "{problems:?}");
        assert_eq!(problems.get(lines), rest.as_ref());
    }
}

#[test]
fn files_of_kubernetes_are_read_or_explained() {
    let limit = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n";
    let translated = file("translated.yaml", &format!("---\nname: shop/http\n{limit}---\n"));
    let output = sluice(&["check", translated.to_str().unwrap()]);
    fs::remove_file(translated).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));

    let indented = limit.replace('\n', "\n    ");
    let map = format!("kind: ConfigMap\nmetadata:\n  name: limits\ndata:\n  shop.yaml: |\n    {indented}\n");
    let map = file("map.yaml", &map);
    let output = sluice(&["check", map.to_str().unwrap()]);
    fs::remove_file(map).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let problem = text(&output.stderr);
    assert!(problem.contains(r"kubectl get configmap limits -o jsonpath='{.data.shop\.yaml}'"), "{problem}");
}

#[test]
fn completions_and_manual_have_all_commands() {
    for arguments in [["completions", "bash"].as_slice(), &["completions", "zsh"], &["completions", "fish"], &["man"]] {
        let output = sluice(arguments);
        assert!(output.status.success() && output.stderr.is_empty());
        let script = text(&output.stdout);
        for word in ["check", "replay", "serve", "init", "envoy", "limitador", "suggest"] {
            assert!(script.contains(word), "{arguments:?} without {word}");
        }
    }
}

#[cfg(not(feature = "dynamodb"))]
#[test]
fn a_program_without_dynamodb_says_so() {
    let file = file("dynamodb.toml", "[store.limits]\nkind = \"dynamodb\"\ntable = \"limits\"\n");
    let output = sluice(&["check", file.to_str().unwrap()]);
    let error = text(&output.stderr);
    assert!(error.contains(":2: ") && error.contains("--features dynamodb"), "{error}");
}

#[test]
fn unstorable_names_and_limits_are_checked() {
    let route = "[store.postgres]\nurl = \"postgres://h/d\"\n[[route]]\npath = \"/a\"\n[[route.policy]]\n";
    let window = "algorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\n";
    let queue = "name = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 999999999999999\nper = \"1s\"\n";
    for (name, text) in
        [("nul", format!("{route}name = \"a\\u0000b\"\n{window}")), ("queue", format!("{route}{queue}"))]
    {
        let file = file(&format!("{name}.toml"), &text);
        let output = sluice(&["check", file.to_str().unwrap()]);
        assert!(!text_of(&output).contains("panicked"), "{name}: {}", text_of(&output));
    }
}

fn text_of(output: &Output) -> String {
    text(&output.stdout).to_owned() + text(&output.stderr)
}

#[test]
fn a_check_says_where_budgets_are() {
    let policies = "[[route.policy]]\nname = \"a\"\nalgorithm = \"fixed-window\"\nlimit = 1\nper = \"1s\"\n\
                    [[route.policy]]\nname = \"b\"\nalgorithm = \"slow-down\"\nlimit = 2\nper = \"1s\"\n\
                    [[route.policy]]\nname = \"c\"\nstore = \"memory\"\nalgorithm = \"concurrency\"\nlimit = 3\n";
    let store = "[store.limits]\nkind = \"postgres\"\nurl = \"postgres://h/d\"\n";
    for (name, store, places) in [
        ("places.toml", store, [", on limits ", ", in memory ", ", in memory "]),
        ("memory.toml", "", ["in fixed windows  ", "2 per second  ", "3 in flight  "]),
    ] {
        let file = file(name, &format!("{store}[[route]]\npath = \"/a\"\n{policies}"));
        let output = sluice(&["check", file.to_str().unwrap()]);
        let rows: Vec<_> = text(&output.stdout).lines().skip(3).take(3).collect();
        assert_eq!(rows.len(), 3, "{}", text_of(&output));
        for (row, place) in rows.iter().zip(places) {
            assert!(row.contains(place), "{}", text_of(&output));
        }
    }
}
