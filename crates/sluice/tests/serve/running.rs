//! The service while it runs: health, metrics, the admin service, changes to its file, and its end.

use std::fs;

use crate::proto::Code;
use crate::service::{Service, file, request};
#[cfg(target_os = "linux")]
use crate::timing::eventually;

fn config(limit: u32) -> String {
    format!(
        r#"
        [[route]]
        path = "/shop"
          [[route.policy]]
          name = "per-user"
          algorithm = "fixed-window"
          limit = {limit}
          per = "1day"
          key = "descriptor:user"
        "#
    )
}

async fn get(url: String) -> String {
    reqwest::get(url).await.unwrap().error_for_status().unwrap().text().await.unwrap()
}

/// The unit file promises that proxies start once the service listens, so the service must say when it does.
#[cfg(target_os = "linux")]
#[test]
fn the_service_manager_learns_that_it_listens() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let config = file("notify.toml", &config(1));
    let path = file("notify.socket", "");
    fs::remove_file(&path).unwrap();
    let abstract_name = format!("sluice-notify-{}", std::process::id());
    let managers = [
        (UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap().to_owned()),
        (
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap(),
            format!("@{abstract_name}"),
        ),
    ];
    for (manager, name) in &managers {
        let arguments = ["--config", config.to_str().unwrap()];
        let service = Service::start_with(&arguments, &[("NOTIFY_SOCKET", name)]);
        let mut message = [0; 64];
        let length = manager.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1\n");
        std::net::TcpStream::connect(service.address).expect("it listens");
    }
    fs::remove_file(path).unwrap();
}

const ADA: &[(&str, &str)] = &[("user", "ada")];

#[tokio::test]
async fn it_reports_health_and_decisions() {
    let service = Service::start(&config(1));
    assert_eq!(get(service.url("/healthz")).await, "ok\n");
    let mut client = service.connect().await;
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(client.ask(request("shop", &[ADA])).await.unwrap().overall_code(), expected);
    }
    let metrics = get(service.url("/metrics")).await;
    let counted = |result: &str| {
        let line = metrics.lines().find(|line| line.contains("requests_total{") && line.contains(result));
        line.unwrap_or_else(|| panic!("no {result} in {metrics}")).rsplit_once(' ').unwrap().1.to_owned()
    };
    assert_eq!([counted("\"allowed\""), counted("\"rejected\"")], ["1", "1"]);
}

/// Asks until the service admits, as it does once it has reread the file.
async fn admits_in_the_end(service: &Service) {
    let mut client = service.connect().await;
    while client.ask(request("shop", &[ADA])).await.unwrap().overall_code() != Code::Ok {
        tokio::task::yield_now().await;
    }
}

/// The service rereads its file after SIGHUP, and when the file has changed.
#[tokio::test]
async fn edits_apply_and_keep_the_counts() {
    let service = Service::start(&config(1));
    let mut client = service.connect().await;
    assert_eq!(client.ask(request("shop", &[ADA])).await.unwrap().overall_code(), Code::Ok);
    service.write_config(&config(2));
    service.signal("-HUP");
    admits_in_the_end(&service).await;
    // A mistake changes nothing.
    service.write_config("[[route]]\npath = \"/shop\"\nlimit = 3");
    service.signal("-HUP");
    service.write_config(&config(3));
    admits_in_the_end(&service).await;
    // The reported limit follows the one in force.
    loop {
        let response = client.ask(request("shop", &[ADA])).await.unwrap();
        assert_eq!(response.overall_code(), Code::OverLimit);
        if response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit == 3 {
            return;
        }
    }
}

/// Waits until the metrics have this line.
async fn has_metric(service: &Service, line: &str) {
    while !get(service.url("/metrics")).await.lines().any(|found| found == line) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn requests_to_no_route_are_counted() {
    let service = Service::start(&config(1));
    get(service.url("/auth/about")).await;
    has_metric(&service, "sluice_requests_without_route_total 1").await;
}

#[tokio::test]
async fn metrics_show_whether_files_apply() {
    let service = Service::start(&config(1));
    has_metric(&service, "sluice_config_applied 1").await;
    service.write_config("[[route]]\npath = 3");
    service.signal("-HUP");
    has_metric(&service, "sluice_config_applied 0").await;
    service.write_config(&config(2));
    service.signal("-HUP");
    has_metric(&service, "sluice_config_applied 1").await;
}

#[tokio::test]
async fn budgets_in_a_snapshot_outlive_a_restart() {
    let snapshot = file("limits.snapshot", "");
    fs::remove_file(&snapshot).unwrap();
    let config = format!("snapshot = {{ path = {:?}, every = \"1h\" }}\n{}", snapshot.display().to_string(), config(1));
    let service = Service::start(&config);
    assert_eq!(service.connect().await.ask(request("shop", &[ADA])).await.unwrap().overall_code(), Code::Ok);
    service.signal("-TERM");
    assert!(service.wait().await);
    let service = Service::start(&config);
    assert_eq!(service.connect().await.ask(request("shop", &[ADA])).await.unwrap().overall_code(), Code::OverLimit);
    fs::remove_file(&snapshot).unwrap();
}

#[tokio::test]
async fn it_answers_health_checks_over_grpc() {
    let service = Service::start(&config(1));
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(service.connect().await.health(name).await.unwrap(), SERVING);
    }
    assert_eq!(service.connect().await.health("other").await.unwrap_err().code(), tonic::Code::NotFound);
}

/// The status number in `grpc.health.v1`.
const SERVING: i32 = 1;

#[tokio::test]
async fn connected_clients_do_not_delay_its_end() {
    let service = Service::start(&config(1));
    let mut client = service.connect().await;
    assert_eq!(client.ask(request("shop", &[ADA])).await.unwrap().overall_code(), Code::Ok);
    service.signal("-TERM");
    assert!(service.wait().await);
    drop(client);
}

/// The service's resident memory, in MiB.
#[cfg(target_os = "linux")]
fn resident(service: &Service) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1_024
}

/// Each rule has a table with 2 MiB, and an idle table touches only a few pages. If an edit dropped and recreated
/// tables, they would come back from the allocator with all their pages.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn editing_one_rule_takes_no_memory() {
    let routes = |edit: u64| {
        let route = |number: u64| {
            let limit = if number == 0 { 10 + edit } else { 5 };
            format!(
                "[[route]]\npath = \"/{number}\"\npolicy = [{{ name = \"all\", algorithm = \"fixed-window\", limit = {limit}, \
                 per = \"1day\", key = \"client-ip\" }}]\n"
            )
        };
        (0..60).map(route).collect::<String>()
    };
    let descriptors = |edit: u64| {
        let descriptor = |number: u64| {
            let limit = if number == 0 { 10 + edit } else { 5 };
            format!("- {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n")
        };
        format!("domain: shop\ndescriptors:\n{}", (0..60).map(descriptor).collect::<String>())
    };
    let envoy = file("rules.yaml", &descriptors(0));
    let config = file("routes.toml", &routes(0));
    let service =
        Service::start_alone(&["--config", config.to_str().unwrap(), "--envoy-config", envoy.to_str().unwrap()]);
    let mut client = service.connect().await;
    let before = resident(&service);
    for edit in 1..6 {
        fs::write(&config, routes(edit)).unwrap();
        fs::write(&envoy, descriptors(edit)).unwrap();
        service.signal("-HUP");
        let look = request("shop", &[&[("k0", "x")]]);
        eventually("the edit is in force", async || {
            let response = client.ask(look.clone()).await.unwrap();
            u64::from(response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit) == 10 + edit
        })
        .await;
    }
    let after = resident(&service);
    assert!(after < before + 60, "{before} MiB, and {after} MiB after five edits");
}

/// A table whose keys have their own quotas takes 25 MiB, so it is created only when a request first brings a limit.
#[cfg(target_os = "linux")]
#[test]
fn idle_domains_take_little_memory() {
    let namespace = |number| format!("- {{namespace: n{number}, max_value: 5, seconds: 60}}\n");
    let limitador = file("namespaces.yaml", &(0..50).map(namespace).collect::<String>());
    let mut arguments = vec!["--limitador-config".to_owned(), limitador.to_str().unwrap().to_owned()];
    for number in 0..10 {
        let domain = format!(
            "{{domain: d{number}, descriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 1}}}}]}}"
        );
        let domain = file("domain.yaml", &domain);
        arguments.extend(["--envoy-config".to_owned(), domain.to_str().unwrap().to_owned()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let resident = resident(&Service::start_alone(&arguments));
    assert!(resident < 150, "{resident} MiB");
}

/// A scrape for a file with ten thousand rules had twelve megabytes.
#[tokio::test]
async fn rules_without_requests_have_few_series() {
    let rules: String = (0..2_000)
        .map(|rule| format!("  - {{key: tenant, value: t{rule}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n"))
        .collect();
    let limits = file("many.yaml", &format!("domain: shop\ndescriptors:\n{rules}"));
    let arguments = ["--max-keys", "64", "--envoy-config", limits.to_str().unwrap()];
    let service = Service::start_alone(&arguments);
    let series = async |rule: usize| {
        let metrics = get(service.url("/metrics")).await;
        let label = format!("policy=\"tenant:t{rule}\"");
        (metrics.len(), metrics.lines().filter(|line| line.contains(&label)).count())
    };
    let (bytes, of_first) = series(0).await;
    assert!(bytes < 500_000 && of_first > 9, "{bytes} bytes, {of_first} series");
    assert_eq!(series(1_999).await.1, 0);
    let mut client = service.connect().await;
    client.ask(request("shop", &[&[("tenant", "t1999")]])).await.unwrap();
    let (bytes, of_last) = series(1_999).await;
    assert!(bytes < 500_000, "{bytes} bytes");
    assert_eq!(of_last, of_first);
}

/// If a proxy's clients all share one budget, the limit looks too low.
#[tokio::test]
async fn warns_if_proxies_report_no_client() {
    let config = r#"
        [client-ip]
        source = "x-forwarded-for"
        trusted = ["127.0.0.1"]
        [[route]]
        path = "/"
        [[route.policy]]
        name = "all"
        algorithm = "fixed-window"
        limit = 1000000
        per = "1h"
        key = "client-ip"
    "#;
    let service = Service::start_logging(config);
    for _ in 0..100 {
        get(service.url("/auth/")).await;
    }
    service.has_logged("trusted proxies have reported no client in the first 100 requests").await;
}
