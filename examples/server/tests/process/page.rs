//! Checks the example server's page from outside: its origins, its numbers, and its limit changes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::client::{get, get_with};
use crate::echo;
use crate::server::{Server, rejected};
use serde_json::{Value, json};

/// Returns the numbers in `/live` for the route with this path.
fn live(server: &Server, path: &str) -> Value {
    let live = get(server.address, "/live?since=0").json();
    let routes = live["routes"].as_array().unwrap();
    routes.iter().find(|route| route["paths"][0] == path).unwrap_or_else(|| panic!("no {path} in {live}")).clone()
}

fn counts(route: &Value) -> [u64; 5] {
    ["offered", "admitted", "delayed", "rejected", "left"].map(|count| route[count].as_u64().unwrap())
}

/// Polls until `holds`. The bound is for tests that hang.
fn until(server: &Server, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let route = live(server, path);
        if holds(&route) {
            return route;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{route}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The page is complete.
#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let server = Server::start();
    let scripts = ["axis", "draw", "limit", "loads", "overload", "ticket"].map(|name| format!("/page/{name}.js"));
    let scripts = scripts.iter().map(String::as_str).chain(["/page.js"]).map(|path| (path, "text/javascript"));
    let others = [("/", "text/html"), ("/page/overload", "text/html"), ("/page.css", "text/css")];
    let mut size = 0;
    for (path, media_type) in scripts.chain(others) {
        let answer = get(server.address, path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.headers["content-type"].starts_with(media_type), "{path}");
        let policy = &answer.headers["content-security-policy"];
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{path}: {policy}");
        // The SVG namespace is a name, not an address, and a link loads nothing.
        let link = "<a href=\"https://docs.rs/tower-sluice/latest/tower_sluice/guide/\">";
        let text = answer.body.replace("http://www.w3.org/2000/svg", "").replace(link, "");
        assert!(!text.contains("://") && !text.contains("\"//"), "{path} names another origin");
        assert!(!text.contains("innerHTML"), "{path}");
        size += text.len();
    }
    assert!(size < 65_000, "{size} bytes");
    // The page explains each load that it can ask for.
    let page = get(server.address, "/").body;
    for load in ["half", "twice", "burst", "groups", "edge"] {
        assert!(
            page.contains(&format!("data-load=\"{load}\"")) && page.contains(&format!("data-about=\"{load}\"")),
            "{load}"
        );
    }

    for path in ["/live", "/page/draw.js"] {
        let own = rejected(&format!("[[route]]\npath = \"{path}\"\n"));
        assert!(String::from_utf8_lossy(&own.stderr).contains(&format!(".toml:2: path `{path}` is the server's own")));
    }
}

#[test]
fn each_policy_is_described_in_one_line() {
    let server = Server::start_with(
        r#"
        [[route]]
        path = "/bucket"
          [[route.policy]]
          name = "b"
          algorithm = "token-bucket"
          limit = 2
          per = "1h"
          key = "header:x-client"

        [[route]]
        path = "/words"
        policy = [
            { name = "w", algorithm = "fixed-window", limit = 10, per = "1s", cost = 3, staggered = true, shadow = true,
              key = ["client-ip", "header:x-a"], charge-when = [401, 403],
              penalty = { rejections = 5, per = "1m", ban = "10m" } },
            { name = "q", algorithm = "leaky-queue", limit = 1, per = "250ms", burst = 2, max-queue = 5, max-wait = "2s" },
            { name = "f", algorithm = "concurrency", limit = 4, max-queue = 9, key = "client-ip" },
            { name = "o", algorithm = "overload", max-wait = "1s", key = "header:x-a" },
        ]
        "#,
    );
    assert_eq!(live(&server, "/bucket")["policies"][0]["words"], "token-bucket: 2 per 1h, by header:x-client");
    let words = &live(&server, "/words")["policies"];
    assert_eq!(
        words[0]["words"],
        "fixed-window: 10 per 1s, staggered, cost 3, by client-ip and header:x-a, for responses 401 and 403 only, \
         banned for 10m after more than 5 early retries per 1m, shadow"
    );
    let queue = "leaky-queue: 1 per 250ms, burst 2, up to 5 waiting, for up to 2s, for all clients together";
    assert_eq!((&words[1]["name"], &words[1]["words"]), (&"q".into(), &queue.into()));
    assert_eq!(words[2]["words"], "concurrency: 4 in flight, up to 9 waiting, by client-ip");
    assert_eq!(words[3]["words"], "overload: as many as the server can do in flight, for up to 1s, by header:x-a");
}

#[test]
fn the_counts_of_a_route_are_true() {
    let server = Server::start_with(
        r#"
        [[route]]
        path = ["/a", "/b"]
          [[route.policy]]
          name = "first"
          algorithm = "token-bucket"
          limit = 2
          per = "1h"
          key = "header:x-client"

        [[route]]
        path = "/free/{id}"
        "#,
    );
    let route = live(&server, "/a");
    assert_eq!(
        (&route["waiting"], &route["next_release_ms"], &route["open"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!(route["limit"], json!({ "limit": 2, "per_ms": 3_600_000 }));
    assert_eq!(live(&server, "/free/{id}")["limit"], Value::Null);
    let as_client = |path: &str| get_with(server.address, path, &[("x-client", "c")]).status;
    assert_eq!(["/a", "/b", "/a"].map(as_client), [200, 200, 429]);
    assert_eq!(get(server.address, "/a").status, 400, "without the key");
    assert_eq!(counts(&live(&server, "/a")), [4, 2, 0, 2, 0]);
    assert_eq!(get(server.address, "/free/7").status, 200);
    assert_eq!(counts(&live(&server, "/free/{id}")), [1, 1, 0, 0, 0]);
}

/// The page said "nothing rejected yet" under "rejected 29": while a load ran, and when it was opened later.
#[test]
fn every_page_shows_the_last_rejection() {
    let server = Server::start_with(
        r#"
        [[route]]
        path = "/a"
          [[route.policy]]
          name = "first"
          algorithm = "token-bucket"
          limit = 1
          per = "1h"
          key = "header:x-client"

        [[route]]
        path = "/sluice.example.v1.Echo/Echo"
          [[route.policy]]
          name = "echo"
          algorithm = "token-bucket"
          limit = 2
          per = "1h"
          key = "client-ip"
        "#,
    );
    let last = |path: &str| live(&server, path)["last_rejection"].clone();
    let as_client = || get_with(server.address, "/a", &[("x-client", "c")]).status;
    assert_eq!((as_client(), last("/a")), (200, Value::Null));
    assert_eq!(as_client(), 429);
    let rejection = last("/a");
    assert_eq!(rejection["status"], 429);
    let field = |name: &str| rejection["fields"][name].as_str().unwrap_or_default();
    assert!(field("ratelimit").contains("r=0") && field("retry-after").parse::<u64>().is_ok(), "{rejection}");
    assert_eq!(get(server.address, "/a").status, 400, "without the key");
    assert_eq!(last("/a")["status"], 400);

    assert_eq!(last(echo::PATH), Value::Null);
    assert_eq!(load(&server, "application/json", r#"{"load":"burst"}"#).0, 200);
    let rejection = last(echo::PATH);
    assert_eq!((&rejection["status"], &rejection["fields"]["grpc-status"]), (&json!(200), &json!("8")));
}

/// The page counted it as rejected, although the limit admitted it and charged it.
#[test]
fn a_handlers_error_counts_as_admitted() {
    let server = Server::start();
    assert_eq!(get(server.address, echo::PATH).status, 415);
    assert_eq!(counts(&live(&server, echo::PATH)), [1, 1, 0, 0, 0]);
}

/// It shrinks when a client disconnects.
#[test]
fn the_reported_queue_length_is_true() {
    let queue = |path: &str, per: &str| {
        format!(
            "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 1\n\
             per = \"{per}\"\nmax-queue = 2\nmax-wait = \"3h\"\n"
        )
    };
    let server = Server::start_with(&(queue("/q", "1h") + &queue("/slow", "2s")));
    let address = server.address;
    assert_eq!(get(address, "/q").status, 200);
    let idle = live(&server, "/q");
    assert_eq!((idle["waiting"].as_u64(), &idle["next_release_ms"]), (Some(0), &Value::Null));

    let send = || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"GET /q HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
        socket
    };
    let first = send();
    let one = until(&server, "/q", |route| route["waiting"] == 1);
    let next = one["next_release_ms"].as_u64().unwrap();
    assert!(next <= 3_600_000 && next > 3_500_000, "{next}");
    let second = send();
    until(&server, "/q", |route| route["waiting"] == 2);
    assert_eq!(get(address, "/q").status, 503, "the queue is full");
    drop(first);
    until(&server, "/q", |route| route["waiting"] == 1 && route["left"] == 1);
    drop(second);
    let after = until(&server, "/q", |route| route["waiting"] == 0 && route["left"] == 2);
    assert_eq!((counts(&after), &after["next_release_ms"]), ([4, 1, 0, 1, 2], &Value::Null));

    assert_eq!([get(address, "/slow").status, get(address, "/slow").status], [200, 200]);
    assert_eq!(counts(&live(&server, "/slow")), [2, 2, 1, 0, 0]);
}

/// Asks for a load, and returns the response's status and body.
fn load(server: &Server, content_type: &str, body: &str) -> (u16, String) {
    post(server, "/load", content_type, body)
}

fn post(server: &Server, path: &str, content_type: &str, body: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(server.address).unwrap();
    let length = body.len();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nhost: test\r\nx-client: c\r\ncontent-type: {content_type}\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Its requests carry the headers of the client that asked.
#[test]
fn a_load_reaches_all_routes() {
    let server = Server::start_with(
        r#"
        [[route]]
        path = "/keyed"
          [[route.policy]]
          name = "keyed"
          algorithm = "token-bucket"
          limit = 7
          per = "1h"
          key = "header:x-client"

        [[route]]
        path = "/by-address"
          [[route.policy]]
          name = "by-address"
          algorithm = "fixed-window"
          limit = 3
          per = "1h"
          key = "client-ip"

        [[route]]
        path = "/sluice.example.v1.Echo/Echo"
          [[route.policy]]
          name = "echo"
          algorithm = "token-bucket"
          limit = 2
          per = "1h"
          key = "client-ip"
        "#,
    );
    let (status, body) = load(&server, "application/json", r#"{"load":"burst"}"#);
    assert_eq!(status, 200, "{body}");
    let results: Value = serde_json::from_str(&body).unwrap();
    let paths = ["/keyed", "/by-address", echo::PATH];
    for ((path, admitted), result) in paths.into_iter().zip([7, 3, 2]).zip(results["routes"].as_array().unwrap()) {
        assert_eq!((&result["path"], &result["admitted"]), (&json!(path), &json!(admitted)));
        assert_eq!(result["rejected"], 50 - admitted);
        assert_eq!(counts(&live(&server, path)), [50, admitted, 0, 50 - admitted, 0]);
    }
    // The load spent its own client's budgets, and the question for the window's end spent nothing.
    assert_eq!(get_with(server.address, "/keyed", &[("x-client", "other")]).status, 200);
    assert_eq!(get(server.address, "/by-address").status, 429);
}

#[test]
fn unknown_and_foreign_loads_are_rejected() {
    let server = Server::start();
    let (status, body) = load(&server, "application/json", r#"{"load":"storm"}"#);
    assert_eq!((status, body.contains("half, twice, burst, groups, edge or full")), (400, true), "{body}");
    // A page on another origin can send text without a preflight.
    assert_eq!(load(&server, "text/plain", r#"{"load":"burst"}"#).0, 415);
    assert_eq!(counts(&live(&server, "/token-bucket"))[0], 0);
}

/// A request in between is rejected, and the other routes are left alone.
#[test]
fn a_routes_load_uses_up_its_limit() {
    let server = Server::start();
    let full = r#"{"load":"full","path":"/token-bucket"}"#;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&server, "application/json", full));
        until(&server, "/token-bucket", |route| route["rejected"].as_u64() >= Some(5));
        // One in ten gets a unit before the load does.
        let own = || get_with(server.address, "/token-bucket", &[("x-own", "1")]).status;
        assert!((0..5).any(|_| own() == 429));
        let (status, body) = load.join().unwrap();
        assert_eq!((status, body.matches("path").count()), (200, 1), "{body}");
    });
    assert_eq!(counts(&live(&server, "/leaky-bucket")), [0; 5]);
    let requests = live(&server, "/token-bucket")["requests"].as_array().unwrap().clone();
    let own: Vec<_> = requests.iter().filter(|request| request[4] == true).collect();
    assert_eq!(own.last().unwrap()[2], "rejected", "{own:?}");
}

/// The page draws each request once: when it comes, when it waits, and when it leaves.
#[test]
fn a_routes_requests_have_their_results() {
    let server = Server::start();
    let address = server.address;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(get(address, "/leaky-queue").status, 200));
        }
    });
    let route = live(&server, "/leaky-queue");
    let requests: Vec<_> =
        route["requests"].as_array().unwrap().iter().map(|request| request.as_array().unwrap()).collect();
    let numbers: Vec<_> = requests.iter().map(|request| request[0].as_u64().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2]);
    let mut decided: Vec<_> =
        requests.iter().map(|request| (request[3].as_u64().unwrap(), request[2].as_str().unwrap())).collect();
    decided.sort_unstable();
    assert_eq!(decided.iter().map(|(_, result)| *result).collect::<Vec<_>>(), ["admitted", "delayed", "delayed"]);
    // Ten per second from the first arrival on, less a millisecond that is cut off on either side. A busy machine may
    // decide later.
    let first = requests.iter().map(|request| request[1].as_u64().unwrap()).min().unwrap();
    assert!((0..).zip(&decided).all(|(turn, (at, _))| at + 2 >= first + 100 * turn), "{first} {decided:?}");

    // The results that the page knows already are left out, and a reader that only asks for the counts gets no results.
    assert!(get(address, "/live").json()["routes"].as_array().unwrap().iter().all(|route| route["requests"].is_null()));
    let since = decided[2].0;
    let live = get(address, &format!("/live?since={since}")).json();
    let queue = live["routes"].as_array().unwrap().iter().find(|route| route["paths"][0] == "/leaky-queue").unwrap();
    assert_eq!(queue["requests"].as_array().unwrap().len(), 1, "{queue}");
    assert!(live["now_ms"].as_u64().unwrap() >= since);
}

#[test]
fn the_page_changes_all_limits() {
    let server = Server::start();
    let change = |content_type: &str, body: &str| post(&server, "/live/limit", content_type, body);
    assert_eq!(change("application/json", r#"{"limit":3}"#).0, 200);
    for route in get(server.address, "/live").json()["routes"].as_array().unwrap() {
        let is_free = route["paths"][0] == "/unlimited";
        assert!(is_free || route["limit"]["limit"] == 3, "{route}");
    }
    let toml = get(server.address, "/live/toml/fixed-window").body;
    let written = ["[[route]]", "path = \"/fixed-window\"", "[[route.policy]]", "limit = 3", "per = \"1s\""];
    assert!(written.iter().all(|line| toml.lines().any(|other| other == *line)), "{toml}");
    assert_eq!(get(server.address, "/live/toml/other").status, 404);
    let begun = Instant::now();
    let admitted = (0..20).filter(|_| get(server.address, "/fixed-window").status == 200).count() as u64;
    // A window begins in each second that this takes.
    assert!((3..=3 * (begun.elapsed().as_secs() + 2)).contains(&admitted), "{admitted}");

    for (content_type, body, expected) in [
        ("application/json", r#"{"limit":0}"#, 400),
        ("application/json", r#"{"limit":41}"#, 400),
        ("application/json", r#"{"limit":"3"}"#, 400),
        // A page on another origin can send text without a preflight.
        ("text/plain", r#"{"limit":4}"#, 415),
    ] {
        assert_eq!(change(content_type, body).0, expected, "{body}");
    }
    assert_eq!(live(&server, "/fixed-window")["limit"]["limit"], 3);
}

/// The file sets the limit. A change by the page would be lost when the file is edited next.
#[test]
fn the_page_changes_no_files_limit() {
    let server = Server::start_with("[[route]]\npath = \"/a\"\n");
    assert_eq!(get(server.address, "/live").json()["can_change"], false);
    let (status, body) = post(&server, "/live/limit", "application/json", r#"{"limit":3}"#);
    assert_eq!((status, body.contains("edit the file instead")), (409, true), "{body}");
}

#[test]
fn a_load_ends_when_its_client_disconnects() {
    // The client is gone before the first request that waits has its turn.
    let server = Server::start_with(
        r#"
        [[route]]
        path = "/q"
          [[route.policy]]
          name = "q"
          algorithm = "leaky-queue"
          limit = 1
          per = "1h"
          max-queue = 10
          max-wait = "24h"
        "#,
    );
    let mut socket = TcpStream::connect(server.address).unwrap();
    let body = r#"{"load":"twice"}"#;
    write!(
        socket,
        "POST /load HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    until(&server, "/q", |route| route["waiting"].as_u64() >= Some(3));
    drop(socket);
    // Otherwise those that wait would do so for hours.
    until(&server, "/q", |route| route["waiting"] == 0 && route["left"].as_u64() >= Some(3));
}
