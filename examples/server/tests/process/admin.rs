//! The admin service on its own address: its guard, and two servers that share their limits.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Answer, get, get_with, post, send};
use crate::server::{Server, output, output_with};

/// A limit that no test waits for.
const CONFIG: &str = r#"
    [[route]]
    path = "/a"
      [[route.policy]]
      name = "per-customer"
      algorithm = "fixed-window"
      limit = 5
      per = "100days"
      key = "header:x-customer"
      track-offenders = "whole"
"#;

/// The reads, and the calls that act.
const READS: [&str; 4] = ["policies", "stores", "exceptions", "offenders"];
const ACTS: [&str; 5] = ["key", "reset", "ban", "allow", "unban"];

const BAN: &str = r#"{"policy": "per-customer", "key": "ada", "for": "1h", "reason": "scrapes the catalogue"}"#;

fn read(admin: SocketAddr, name: &str) -> Value {
    let answer = send(admin, "GET", &format!("/api/{name}"), &[("host", &admin.to_string())], "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[track_caller]
fn done(admin: SocketAddr, name: &str, body: &Value) -> Value {
    let answer = post(admin, &format!("/api/{name}"), &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn ask(server: &Server, customer: &str) -> Answer {
    get_with(server.address, "/a", &[("x-customer", customer)])
}

#[test]
fn the_limited_port_serves_no_admin() {
    let server = Server::start_with_admin(CONFIG, &[]);
    assert_ne!(server.address, server.admin());
    for name in READS {
        assert_eq!(get(server.address, &format!("/api/{name}")).status, 404, "{name}");
        assert_eq!(read(server.admin(), name).as_object().unwrap().len(), 1, "{name}");
    }
    for name in ACTS {
        assert_eq!(post(server.address, &format!("/api/{name}"), BAN).status, 404, "{name}");
    }
    for path in ["/admin", "/admin/", "/admin.js", "/admin.css", "/card.js", "/words.js", "/admin/api/policies"] {
        assert_eq!(get(server.address, path).status, 404, "{path}");
    }
    assert!(!get(server.address, "/").body.contains("admin.js"));
    assert_eq!(ask(&server, "ada").status, 200, "none of the calls was carried out");
    // The admin address does not serve the limited port's paths either.
    for path in ["/a", "/metrics", "/live", "/healthz"] {
        assert_eq!(send(server.admin(), "GET", path, &[("host", "localhost")], "").status, 404, "{path}");
    }
    assert_eq!(post(server.admin(), "/load", r#"{"load": "burst"}"#).status, 404);
    // By default, there is no second address.
    let help = String::from_utf8(output(&["--help"]).stdout).unwrap();
    assert!(help.contains("[--admin ADDR:PORT]"), "{help}");
}

#[test]
fn a_reachable_address_needs_a_token() {
    let refused = output(&["--admin", "0.0.0.0:0"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("SLUICE_ADMIN_TOKEN") && told.contains("127.0.0.1"), "{told}");
    let short = output_with(("SLUICE_ADMIN_TOKEN", "secret"), &["--admin", "127.0.0.1:0"]);
    assert!(String::from_utf8(short.stderr).unwrap().contains("less than 16 characters"));
    let nonsense = output(&["--admin", "localhost"]);
    assert!(String::from_utf8(nonsense.stderr).unwrap().contains("such as 127.0.0.1:3001"));

    let token = "0123456789abcdef";
    let server = Server::start_with_token(token);
    let admin = SocketAddr::from(([127, 0, 0, 1], server.admin().port()));
    let status = |authorization: &str| {
        let fields = [("host", "127.0.0.1"), ("authorization", authorization)];
        send(admin, "GET", "/api/policies", &fields, "").status
    };
    let asked = send(admin, "GET", "/", &[("host", "127.0.0.1")], "");
    assert_eq!((asked.status, asked.headers["www-authenticate"].starts_with("Basic")), (401, true));
    assert!(!asked.body.contains("<html"));
    // As a bearer token, and as a browser's password: `anna:0123456789abcdef`.
    assert_eq!(
        [format!("Bearer {token}"), "Basic YW5uYTowMTIzNDU2Nzg5YWJjZGVm".to_owned()].map(|it| status(&it)),
        [200; 2]
    );
    for wrong in
        ["", "Bearer", "Bearer 0123456789abcdeg", "Bearer 0123456789abcdef0", "Basic", "Basic !", "Basic YTpi", token]
    {
        assert_eq!(status(wrong), 401, "{wrong}");
    }
    assert_eq!(post(admin, "/api/ban", BAN).status, 401);
    // Guesses are limited by address. They lock out no one who knows the token, or has yet to be asked for it.
    let guesses = (0..200).map(|_| status("Bearer wrong")).filter(|status| *status == 401).count();
    assert!(guesses <= 100, "{guesses} guesses");
    assert_eq!(status("Bearer wrong"), 429);
    assert_eq!(status(&format!("Bearer {token}")), 200);
    assert_eq!(send(admin, "GET", "/", &[("host", "127.0.0.1")], "").status, 401);
}

/// The three questions, over HTTP: why is she limited, since when, and let her in now.
#[test]
fn a_customer_is_let_in() {
    let server = Server::start_with_admin(CONFIG, &[]);
    let statuses: Vec<_> = (0..6).map(|_| ask(&server, "ada").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let said = done(server.admin(), "key", &json!({ "key": "ada" }))["policies"][0].clone();
    assert_eq!((&said["layer"], &said["state"], &said["left"]), (&json!("/a"), &json!("limited"), &json!(0)));
    assert!(said["passes_in_ms"].as_u64().unwrap() > 0, "{said}");
    let reset = done(server.admin(), "reset", &json!({ "policy": "per-customer", "key": "ada" }));
    assert_eq!((&reset["state"], &reset["left"]), (&json!("passes"), &json!(5)));
    assert_eq!(ask(&server, "ada").status, 200);
}

/// Every call, against two processes that keep their limits on one Redis. On a busy machine, a call to it may take
/// longer than its timeout: then a look does not know the key's state, an act is answered 503, and each is made again.
#[cfg(feature = "redis")]
#[test]
fn servers_share_what_operators_do() {
    use crate::redis::RedisServer;
    use crate::timing::await_until;

    let redis = RedisServer::start();
    let [one, other] = [(); 2].map(|()| Server::start_with_admin(CONFIG, &["--redis", &redis.url()]));
    let look = |server: &Server| done(server.admin(), "key", &json!({ "key": "ada" }))["policies"][0].clone();
    let key = |server: &Server| {
        std::iter::repeat_with(|| look(server)).take(100).find(|said| said["state"] != "unknown").unwrap()
    };
    let act = |server: &Server, call: &str, body: &Value| {
        let calls = std::iter::repeat_with(|| post(server.admin(), &format!("/api/{call}"), &body.to_string()));
        let answer = calls.take(100).find(|answer| answer.status != 503).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str::<Value>(&answer.body).unwrap()
    };
    let with = |more: Value| {
        let mut body = json!({ "layer": "/a", "policy": "per-customer", "key": "ada" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // The store's health, and the policies in force.
    assert_eq!(ask(&one, "bea").status, 200);
    let stores = read(one.admin(), "stores")["stores"].clone();
    assert_eq!((stores.as_array().unwrap().len(), &stores[0]["breaker"]), (1, &json!("closed")), "{stores}");
    assert_eq!(stores[0]["policies"], json!([{ "layer": "/a", "policy": "per-customer" }]));
    assert_eq!(read(other.admin(), "policies")["policies"][0]["limit"], 5);

    // Both use it up together; one resets it.
    assert_eq!([ask(&one, "ada").status, ask(&other, "ada").status], [200, 200]);
    await_until("it is used up", || [&one, &other].map(|server| ask(server, "ada").status) == [429, 429]);
    assert_eq!((&key(&one)["state"], &key(&other)["state"]), (&json!("limited"), &json!("limited")));
    // Each has rejected her, and knows about both after a second.
    await_until("the rejections of both are known", || {
        [&one, &other].iter().all(|server| {
            let listed = read(server.admin(), "offenders")["offenders"][0]["list"][0].clone();
            let counts = [listed["count"].as_u64(), key(server)["rejections"]["count"].as_u64()];
            listed["key"] == "ada" && counts.iter().all(|count| *count >= Some(2))
        })
    });
    assert_eq!(act(&one, "reset", &with(json!({})))["left"], 5);
    // A process that has cached the key as used up asks again after half a second.
    await_until("the other lets her in", || ask(&other, "ada").status == 200);
    assert_eq!(key(&one)["left"], key(&other)["left"]);

    // One bans her; the other says why.
    let terms = json!({ "for": "1h", "reason": "scrapes the catalogue" });
    assert_eq!(act(&one, "ban", &with(terms.clone()))["state"], "banned");
    await_until("the other rejects her", || ask(&other, "ada").status == 429);
    let said = key(&other);
    assert_eq!((&said["state"], &said["ban"]["reason"]), (&json!("banned"), &json!("scrapes the catalogue")));
    for server in [&one, &other] {
        let listed = read(server.admin(), "exceptions")["exceptions"].clone();
        assert_eq!((&listed[0]["key"], &listed[0]["kind"]), (&json!("ada"), &json!("ban")), "{listed}");
    }
    // The other lets her in.
    assert_eq!(act(&other, "unban", &with(json!({})))["state"], "passes");
    await_until("the first lets her in", || ask(&one, "ada").status == 200);

    // The other allows her: more than the limit passes at the first.
    assert_eq!(act(&other, "allow", &with(terms))["state"], "allowed");
    await_until("the first knows", || key(&one)["state"] == "allowed");
    await_until("twenty pass", || (0..20).all(|_| ask(&one, "ada").status == 200));
}
