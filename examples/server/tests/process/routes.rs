//! Checks the example server's interface, and its responses over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::client::{get, get_with};
use crate::server::{Server, output, rejected};
use crate::timing::await_until;
use tonic_prost::ProstCodec;

const ROUTES: [&str; 5] = ["/token-bucket", "/leaky-bucket", "/leaky-queue", "/fixed-window", "/sliding-window"];

#[test]
fn each_algorithm_has_a_default_route() {
    let server = Server::start();
    for (served, route) in ROUTES.iter().chain(&["/overload", "/overload/bare", "/unlimited"]).enumerate() {
        let answer = get(server.address, route);
        assert_eq!(answer.status, 200, "{route}");
        let body = answer.json();
        assert_eq!((body["route"].as_str(), body["served"].as_u64()), (Some(*route), Some(1)), "{route} {served}");
        assert!(body["at_ms"].as_u64().unwrap() < 60_000);
    }
    assert_eq!(get(server.address, "/unlimited").json()["served"], 2);
    assert_eq!(get(server.address, "/healthz").status, 200);
    assert_eq!(get(server.address, "/nothing").status, 404);

    let metrics = get(server.address, "/metrics");
    assert!(metrics.headers["content-type"].starts_with("text/plain"));
    let line =
        r#"tower_sluice_rate_limiting_requests_total{route="/fixed-window",policy="fixed-window",result="allowed"} 1"#;
    assert!(metrics.body.lines().any(|candidate| candidate == line), "{}", metrics.body);
}

/// For each algorithm: get rejected, wait for the time in one of the two fields, be admitted.
#[test]
fn waiting_as_advertised_is_enough() {
    let route = |algorithm: &str, extra: &str| {
        format!(
            "[[route]]\npath = [\"/{algorithm}/exact\", \"/{algorithm}/whole\"]\n[[route.policy]]\nname = \"p\"\n\
             algorithm = \"{algorithm}\"\nlimit = 1\nper = \"700ms\"\nkey = [\"client-ip\", \"path\"]\n{extra}\n"
        )
    };
    let algorithms = ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "leaky-queue"];
    let config: String =
        algorithms.map(|name| route(name, if name == "leaky-queue" { "max-queue = 0" } else { "" })).concat();
    let server = Server::start_with(&config);
    let obey = |path: String, field: &str| {
        for _ in 0..3 {
            // On a busy machine, the budget may be back before the next request comes.
            let rejection = (0..100).map(|_| get(server.address, &path)).find(|answer| answer.status == 429);
            let rejection = rejection.expect("the limit is one");
            let wait: f64 = rejection.headers[field].parse().unwrap();
            let (exact, whole) = (&rejection.headers["x-rate-limited-for"], &rejection.headers["retry-after"]);
            assert!(exact.parse::<f64>().unwrap() <= whole.parse::<f64>().unwrap(), "{exact} {whole}");
            sleep(Duration::from_secs_f64(wait));
            assert_eq!(get(server.address, &path).status, 200, "{path}: rejected after waiting {wait} s");
        }
    };
    std::thread::scope(|scope| {
        for algorithm in algorithms {
            scope.spawn(move || obey(format!("/{algorithm}/exact"), "x-rate-limited-for"));
            scope.spawn(move || obey(format!("/{algorithm}/whole"), "retry-after"));
        }
    });
}

/// Returns how many requests a route's only policy, a queue, has admitted or lets wait.
fn joined(address: SocketAddr) -> u64 {
    let metrics = get(address, "/metrics").body;
    let value = |name: &str, label: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(label));
        line.map_or(0_u64, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    value("tower_sluice_rate_limiting_requests_total", r#"result="allowed""#)
        + value("tower_sluice_rate_limiting_queued_requests", r#"policy="q""#)
}

/// Sends requests, each once the one before has joined the queue. Returns each answer, and when it was read.
fn send_in_turn(address: SocketAddr, count: u64) -> Vec<std::thread::JoinHandle<(crate::client::Answer, Instant)>> {
    let clients = (1..=count).map(|number| {
        let client = std::thread::spawn(move || (get(address, "/q"), Instant::now()));
        while joined(address) < number {
            sleep(Duration::from_millis(1));
        }
        client
    });
    clients.collect()
}

/// The answers come in order.
#[test]
fn the_queue_answers_at_its_pace() {
    let server = Server::start_with(
        "[[route]]\npath = \"/q\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 1\nper = \"1s\"\nmax-queue = 3\n",
    );
    let start = Instant::now();
    for (before, client) in (0..).zip(send_in_turn(server.address, 4)) {
        let (answer, read) = client.join().unwrap();
        assert_eq!((answer.status, answer.json()["served"].as_u64()), (200, Some(before + 1)));
        let waited = read - start;
        assert!(waited >= Duration::from_secs(before), "{before} departed before it, and it after {waited:?}");
    }
}

#[test]
fn a_full_queue_rejects_at_once() {
    let server = Server::start_with(
        "[[route]]\npath = \"/q\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 4\nper = \"1h\"\nmax-queue = 3\nmax-wait = \"1h\"\n",
    );
    let _waiting = send_in_turn(server.address, 4);
    let rejected = get(server.address, "/q");
    assert_eq!(rejected.status, 503, "clients share this queue");
    // The first waiter departs a quarter of an hour after the first request, and makes the queue shorter.
    assert!(rejected.headers["x-rate-limited-for"].parse::<f64>().unwrap() <= 900.0);
}

/// Calls `Echo` once with "hello".
fn call_echo(address: SocketAddr) -> Result<String, tonic::Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
        client.ready().await.unwrap();
        let request = tonic::Request::new(crate::echo::EchoRequest { message: "hello".to_owned() });
        let codec = ProstCodec::<crate::echo::EchoRequest, crate::echo::EchoReply>::default();
        let reply = client.unary(request, http::uri::PathAndQuery::from_static(crate::echo::PATH), codec).await?;
        Ok(reply.into_inner().message)
    })
}

#[test]
fn the_same_port_serves_grpc() {
    let config = |path: &str| {
        format!(
            "[[route]]\npath = [\"/page\"{path}]\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\n\
             limit = 2\nper = \"1h\"\nkey = \"client-ip\"\n"
        )
    };
    let server = Server::start_with(&config(r#", "/sluice.example.v1.Echo/Echo""#));
    assert_eq!(get(server.address, "/page").status, 200);
    assert_eq!(call_echo(server.address).unwrap(), "hello");
    let rejected = call_echo(server.address).unwrap_err();
    assert_eq!(rejected.code(), tonic::Code::ResourceExhausted);
    assert!(rejected.metadata().get("grpc-retry-pushback-ms").is_some());
    assert_eq!(get(server.address, "/page").status, 429);

    // Without a route that limits it, and with the built-in configuration.
    let server = Server::start_with(&config(""));
    assert!((0..5).all(|_| call_echo(server.address).is_ok()));
    assert_eq!(call_echo(Server::start().address).unwrap(), "hello");
}

#[test]
fn whoami_shows_the_client_and_its_keys() {
    let server = Server::start_with(
        r#"
        [client-ip]
        source = "x-forwarded-for"
        trusted = ["127.0.0.0/8"]
        ipv6-prefix = 56
        [[route]]
        path = "/api"
          [[route.policy]]
          name = "who"
          algorithm = "token-bucket"
          limit = 2
          per = "1h"
          key = ["client-ip", "header:x-api-key", "user"]
          on-missing-key = "share"
        "#,
    );
    let headers = [("x-forwarded-for", "2001:db8:1:2ff::1"), ("x-api-key", "k"), ("authorization", "Bearer alice")];
    let whoami = get_with(server.address, "/whoami", &headers).json();
    assert_eq!((whoami["client"].as_str(), whoami["peer"].as_str()), (Some("2001:db8:1:2ff::1"), Some("127.0.0.1")));
    assert_eq!(whoami["keys"]["/api"]["who"], "2001:db8:1:200::/56 + k + alice");

    let status = |forwarded: &str| {
        let headers = [("x-forwarded-for", forwarded), ("x-api-key", "k"), ("authorization", "Bearer alice")];
        get_with(server.address, "/api", &headers).status
    };
    // The client forged the elements to the left of the address that the trusted proxy wrote.
    assert_eq!(status("6.6.6.6, 1.2.3.4"), 200);
    assert_eq!(status("7.7.7.7, 1.2.3.4"), 200);
    assert_eq!(status("8.8.8.8, 1.2.3.4"), 429);
    assert_eq!(status("1.2.3.5"), 200);
}

#[test]
fn invalid_configurations_and_arguments_are_rejected() {
    let bad = rejected(
        "[[route]]\npath = \"/a\"\n  [[route.policy]]\n  name = \"p\"\n  algorithm = \"token-bucket\"\n  limit = 0\n  per = \"1s\"\n",
    );
    let message = String::from_utf8(bad.stderr).unwrap();
    assert_eq!((bad.status.code(), bad.stdout.as_slice()), (Some(2), b"".as_slice()));
    assert!(message.contains(".toml:6: limit = 0 is out of range; write a number from 1"), "{message}");

    let own = rejected("\n[[route]]\npath = \"/metrics\"\n");
    assert_eq!(own.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&own.stderr).contains(".toml:3: path `/metrics` is the server's own"));

    let help = output(&["--help"]);
    assert!(help.status.success() && help.stdout.starts_with(b"usage: server"));
    for (arguments, message) in [
        (["--config", "no-such-file.toml"].as_slice(), "no-such-file.toml"),
        (&["--config"], "--config needs a value"),
        (&["--liste", "x"], "unknown argument --liste"),
        (&["--listen", "nowhere"], "write an address such as 127.0.0.1:3000"),
        (&["--listen", "0.0.0.0:99999"], "write an address such as"),
        (&["--redis", "127.0.0.1"], "--redis: "),
    ] {
        let output = output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(message), "{arguments:?}");
    }
}

/// The server never reads a body, so a client with `Expect: 100-continue` never gets 100: not before its request
/// departs, not then, and not with a rejection.
#[test]
fn expecting_100_gets_a_final_response() {
    let queue = |path: &str, rest: &str| {
        format!(
            "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 1\n\
             key = \"client-ip\"\n{rest}\n"
        )
    };
    let waits = queue("/waits", "per = \"500ms\"\nmax-queue = 5");
    let rejects = queue("/rejects", "per = \"1h\"\nmax-queue = 0");
    let server = Server::start_with(&(waits + &rejects));
    let announce = |path: &str| {
        let mut socket = TcpStream::connect(server.address).unwrap();
        let head = "HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\nexpect: 100-continue\r\nconnection: close";
        write!(socket, "PUT {path} {head}\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap().to_owned()
    };
    let begun = Instant::now();
    assert_eq!([announce("/waits"), announce("/waits")], ["HTTP/1.1 200 OK"; 2]);
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!([announce("/rejects"), announce("/rejects")], ["HTTP/1.1 200 OK", "HTTP/1.1 429 Too Many Requests"]);
}

/// A broken one changes nothing.
#[test]
fn an_edited_file_changes_the_limits() {
    let config = |limit: &str, rest: &str| {
        format!(
            "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\n\
             limit = {limit}\nper = \"1day\"\n{rest}[[route]]\npath = \"/b\"\n"
        )
    };
    let (server, file, log) = Server::start_edited(&config("3", ""));
    let logged = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let policy = |answer: &crate::client::Answer| answer.headers["ratelimit-policy"].clone();
    for _ in 0..3 {
        let answer = get(server.address, "/a");
        assert_eq!((answer.status, &*policy(&answer)), (200, "\"p\";q=3;w=86400"));
    }
    assert_eq!(get(server.address, "/a").status, 503);

    std::fs::write(&file, config("5", "")).unwrap();
    await_until("the change is logged", || logged("the limits were changed"));
    let statuses: Vec<_> = (0..3).map(|_| get(server.address, "/a").status).collect();
    assert_eq!(statuses, [200, 200, 503], "three of five are used");

    // Invalid texts, and changes that need a restart.
    for (text, message) in [
        (config("0", ""), ".toml:6: limit = 0 is out of range; write a number from 1"),
        (config("9", "burst = \n"), ".toml:8: "),
        (
            config("9", "").replace("/b", "/c"),
            ".toml:9: these paths are not those of any route at the start; undo this change, or restart",
        ),
        (config("9", "").replace("[[route]]\npath = \"/b\"\n", ""), "the route of path `/b` is missing"),
        (config("9", "") + "[response]\nadvertise = \"never\"\n", ".toml:10: there was no [response] at the start"),
    ] {
        std::fs::write(&file, text).unwrap();
        await_until(message, || logged(message));
        let rejected = get(server.address, "/a");
        assert_eq!((rejected.status, &*policy(&rejected)), (503, "\"p\";q=5;w=86400"), "{message}");
    }

    // A key per client, and a shadow.
    std::fs::write(&file, config("6", "shadow = true\nkey = \"client-ip\"\n")).unwrap();
    await_until("the key is shown", || get(server.address, "/whoami").json()["keys"]["/a"]["p"] == "127.0.0.1/32");
    assert_eq!([get(server.address, "/a").status, get(server.address, "/b").status], [200; 2]);
}
