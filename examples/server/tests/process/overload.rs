//! `/overload` and `/overload/bare`: work with protection and without, and the load that their page asks for.

use std::thread::{scope, sleep};
use std::time::Duration;

use crate::client::{get, post, send};
use crate::server::Server;
use crate::timing::await_until;
use serde_json::{Value, json};

fn state(server: &Server) -> Value {
    get(server.address, "/overload/state").json()
}

fn ask(server: &Server, tenths: u64, is_protected: bool) -> u16 {
    post(server.address, "/overload/load", &json!({ "tenths": tenths, "is_protected": is_protected }).to_string())
        .status
}

/// Returns a count over the kept slices: for the high class, and for the others.
fn sum(state: &Value, result: usize) -> [u64; 2] {
    let slices = state["slices"].as_array().unwrap();
    [2, 3].map(|class| slices.iter().map(|slice| slice[class][result].as_u64().unwrap()).sum())
}

// Where a slice has them.
const SENT: usize = 0;
const PROMPT: usize = 1;
const LATE: usize = 2;
const SHED: usize = 3;
const LEFT: usize = 4;

#[test]
fn the_worker_serves_both_routes() {
    let server = Server::start();
    for (done, path) in (1..).zip(["/overload", "/overload/bare"]) {
        let answer = get(server.address, path);
        assert_eq!((answer.status, &answer.json()["route"], &answer.json()["served"]), (200, &path.into(), &1.into()));
        let worker = &state(&server)["worker"];
        assert_eq!(worker["done"], done);
        // It takes more than nothing, however often the measurement was interrupted.
        assert!(worker["busy_us"].as_u64().unwrap() > done * 100, "{worker}");
    }
    let whoami = get(server.address, "/whoami").json();
    assert!(whoami["keys"]["/overload"]["overload"].is_string(), "{whoami}");
}

/// Requests that the worker cannot do are rejected with 503.
#[test]
fn overload_is_the_servers_fault() {
    let server = Server::start_with(
        r#"
        [[route]]
        path = "/overload"
          [[route.policy]]
          name = "overload"
          algorithm = "overload"
          limits = [1, 1]
          max-queue = 0
        "#,
    );
    let mut shed = 0;
    await_until("one of several at once is rejected", || {
        let at_once = scope(|all| {
            let clients = [(); 8].map(|()| all.spawn(|| get(server.address, "/overload")));
            clients.map(|client| client.join().unwrap())
        });
        for answer in at_once {
            if answer.status != 200 {
                shed += 1;
                assert_eq!(answer.status, 503);
                assert_eq!(answer.headers["content-type"], "application/problem+json");
                assert!(answer.body.contains("#temporary-reduced-capacity"), "{}", answer.body);
            }
        }
        shed > 0
    });
    let state = state(&server);
    assert_eq!((&state["overload"]["shed"]["normal"], &state["overload"]["limit"]), (&shed.into(), &1.into()));
    assert_eq!((&state["can_protect"], &state["can_bare"]), (&true.into(), &false.into()));
    assert_eq!([ask(&server, 10, false), ask(&server, 0, true)], [409, 200], "there is no route without protection");
}

#[test]
fn the_page_sets_and_sees_a_load() {
    let server = Server::start();
    assert_eq!(ask(&server, 5, true), 200);
    // A busy machine may serve late, or only after the client gives up, where an idle one is in time.
    let has_ended = |state: &Value| [PROMPT, LATE, SHED, LEFT].iter().any(|result| sum(state, *result) != [0, 0]);
    await_until("some are sent and end", || has_ended(&state(&server)));
    assert_eq!(ask(&server, 100, true), 200);
    await_until("some are rejected", || sum(&state(&server), SHED)[1] > 0);
    let seen = state(&server);
    assert_eq!((&seen["tenths"], &seen["is_protected"]), (&100.into(), &true.into()));
    let [high, other] = sum(&seen, SENT);
    // Each fifth is in the high class. If the page has not looked for seconds, the count starts over.
    assert!(high.abs_diff(other / 4) <= 60, "{high}, {other}");

    assert_eq!(ask(&server, 30, false), 200);
    await_until("clients give up", || sum(&state(&server), LEFT).iter().all(|left| *left > 0));
    assert_eq!(ask(&server, 0, false), 200);
    let worker = || state(&server)["worker"]["done"].as_u64().unwrap();
    await_until("the worker is idle", || {
        let before = worker();
        sleep(Duration::from_millis(500));
        worker() == before
    });
}

/// Otherwise it would use a processor while the server runs.
#[test]
fn a_load_ends_when_no_page_watches() {
    let server = Server::start();
    assert_eq!(ask(&server, 5, true), 200);
    // Each look at it lets it live for five more seconds, if it does.
    await_until("it has ended between two looks", || {
        sleep(Duration::from_millis(5_500));
        state(&server)["tenths"] == 0
    });
}

#[test]
fn a_load_is_bounded_and_same_origin() {
    let server = Server::start();
    for (body, expected) in [
        (r#"{"tenths":4,"is_protected":true}"#, 400),
        (r#"{"tenths":101,"is_protected":true}"#, 400),
        (r#"{"tenths":"20","is_protected":true}"#, 400),
        (r#"{"tenths":20}"#, 400),
    ] {
        assert_eq!(post(server.address, "/overload/load", body).status, expected, "{body}");
    }
    // A page on another origin can send text without a preflight.
    let body = r#"{"tenths":20,"is_protected":true}"#;
    let text =
        send(server.address, "POST", "/overload/load", &[("host", "test"), ("content-type", "text/plain")], body);
    assert_eq!((text.status, &state(&server)["tenths"]), (415, &0.into()));
}

/// They would slow down the other routes, and change the figures for their loads.
#[test]
fn burning_routes_have_their_own_page() {
    let server = Server::start();
    let live = get(server.address, "/live").json();
    assert!(
        live["routes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|route| !route["paths"][0].as_str().unwrap().contains("overload"))
    );
    let loaded = post(server.address, "/load", r#"{"load":"burst"}"#).json();
    let paths: Vec<_> =
        loaded["routes"].as_array().unwrap().iter().map(|route| route["path"].as_str().unwrap()).collect();
    assert!(paths.len() == live["routes"].as_array().unwrap().len() && !paths.contains(&"/overload"), "{paths:?}");
    assert_eq!(state(&server)["worker"]["done"], 0);
    let toml = get(server.address, "/live/toml/overload").body;
    assert!(toml.lines().any(|line| line == "algorithm = \"overload\""), "{toml}");
}
